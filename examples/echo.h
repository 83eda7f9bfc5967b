/* What echo_client.c and its servers, echo_server.c and event_loop.c, agree on. */

#ifndef ECHO_H
#define ECHO_H

#define POINT "echo" /* the discriminator at which a server waits */

enum { TEXT = 256 }; /* bytes of a question or an answer, with its NUL */

#endif
