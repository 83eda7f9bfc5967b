/* COMPAT-18: a program whose variables have the names of the functions, as programs have that fetch the
 * functions at run time. The variables are exported (link with -rdynamic) and come before the library in
 * the order of search: a library that called its own functions by name would call into them. */
#define VipOpenNic the_VipOpenNic
#define VipCloseNic the_VipCloseNic
#define VipPostSend the_VipPostSend
#define VipPostRecv the_VipPostRecv
#define VipSendDone the_VipSendDone
#define VipRecvDone the_VipRecvDone
#define VipSendWait the_VipSendWait
#define VipRecvWait the_VipRecvWait
#define VipDisconnect the_VipDisconnect
#define VipDestroyVi the_VipDestroyVi
#define VipQueryVi the_VipQueryVi
#define VipCQDone the_VipCQDone
#define VipDeregisterMem the_VipDeregisterMem
#include "common.h"
#undef VipOpenNic
#undef VipCloseNic
#undef VipPostSend
#undef VipPostRecv
#undef VipSendDone
#undef VipRecvDone
#undef VipSendWait
#undef VipRecvWait
#undef VipDisconnect
#undef VipDestroyVi
#undef VipQueryVi
#undef VipCQDone
#undef VipDeregisterMem

#include <dlfcn.h>

/* Never used, and certainly no functions. */
int VipCloseNic = 1, VipPostSend = 2, VipPostRecv = 3, VipSendDone = 4, VipRecvDone = 5;
long VipSendWait = 6, VipRecvWait = 7, VipDisconnect = 8, VipDestroyVi = 9, VipQueryVi = 10;
char VipCQDone[64], VipDeregisterMem[64];

/* One that is used, as a pointer. */
VIP_RETURN (*VipOpenNic)(const VIP_CHAR *, VIP_NIC_HANDLE *);

/* The functions under the names that common.h uses now. */
static void *library;

static void *function(const char *name)
{
    void *found;

    if (library == NULL)
        library = dlopen("libvipl.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(library != NULL, "dlopen");
    found = dlsym(library, name);
    CHECK(found != NULL, name);
    return found;
}

#define FORWARD(name, parameters, arguments)                     \
    VIP_RETURN the_##name parameters                             \
    {                                                            \
        VIP_RETURN(*real) parameters;                            \
        void *found = function(#name);                           \
        memcpy(&real, &found, sizeof found);                     \
        return real arguments;                                   \
    }

FORWARD(VipCloseNic, (VIP_NIC_HANDLE nic), (nic))
FORWARD(VipPostSend, (VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle), (vi, d, handle))
FORWARD(VipPostRecv, (VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle), (vi, d, handle))
FORWARD(VipSendDone, (VIP_VI_HANDLE vi, VIP_DESCRIPTOR **d), (vi, d))
FORWARD(VipRecvDone, (VIP_VI_HANDLE vi, VIP_DESCRIPTOR **d), (vi, d))
FORWARD(VipSendWait, (VIP_VI_HANDLE vi, VIP_ULONG timeout, VIP_DESCRIPTOR **d), (vi, timeout, d))
FORWARD(VipRecvWait, (VIP_VI_HANDLE vi, VIP_ULONG timeout, VIP_DESCRIPTOR **d), (vi, timeout, d))
FORWARD(VipDisconnect, (VIP_VI_HANDLE vi), (vi))
FORWARD(VipDestroyVi, (VIP_VI_HANDLE vi), (vi))
FORWARD(VipQueryVi,
        (VIP_VI_HANDLE vi, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes, VIP_BOOLEAN *s, VIP_BOOLEAN *r),
        (vi, state, attributes, s, r))
FORWARD(VipDeregisterMem, (VIP_NIC_HANDLE nic, VIP_PVOID base, VIP_MEM_HANDLE handle), (nic, base, handle))

VIP_RETURN the_VipOpenNic(const VIP_CHAR *name, VIP_NIC_HANDLE *nic)
{
    void *found = function("VipOpenNic");

    memcpy(&VipOpenNic, &found, sizeof found);
    return VipOpenNic(name, nic);
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    VIP_VI_HANDLE one, two;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *buffer;
    struct node node;

    open_node(&node, options.device, 65536);
    one = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    two = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    buffer = take(&node, 200);
    join_vis(&node, one, &node, two);
    post_recv(&node, one, in, buffer, 100);
    fill(buffer + 100, 100, 1);
    post_send(&node, two, out, buffer + 100, 100);
    EXPECT_SEND(two, out, STATUS_SENT, "COMPAT-18");
    EXPECT_RECV(one, in, STATUS_RECEIVED, "COMPAT-18");
    CHECK(filled(buffer, 100, 1), "COMPAT-18");
    MUST(the_VipDisconnect(one));
    end_vi(two);
    MUST(the_VipDestroyVi(one));
    close_node(&node);
    CHECK(VipCloseNic == 1 && VipPostSend == 2 && VipPostRecv == 3 && VipSendDone == 4 && VipRecvDone == 5,
          "COMPAT-18");
    CHECK(VipSendWait == 6 && VipRecvWait == 7 && VipDisconnect == 8 && VipDestroyVi == 9 && VipQueryVi == 10,
          "COMPAT-18");
    CHECK(all_bytes(VipCQDone, 64, 0) && all_bytes(VipDeregisterMem, 64, 0), "COMPAT-18");
    ok("variables with the names of functions");
    return 0;
}
