/* The registration cache of mp: memory that was registered once stays so. */

#ifndef CACHE_H
#define CACHE_H

#include <stddef.h>
#include <vipl.h>

void cache_open(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE tag);
void cache_close(void);

/* Registers memory for sends, receives and the RDMA Writes of peers. */
VIP_MEM_HANDLE cache_register(void *memory, size_t bytes);

/* The number of a region that has this range, for a transfer that uses it until the release. */
int cache_use(const void *data, size_t bytes);
void cache_release(int region);
VIP_MEM_HANDLE cache_handle(int region);

#endif
