/* What the examples share: one check, one address, one region with its descriptors. */

#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vipl.h>

/* Calls a function that must succeed. The library says on standard error why it did not. */
#define MUST(call)                                                     \
    do {                                                               \
        VIP_RETURN result_ = (call);                                   \
        if (result_ != VIP_SUCCESS) {                                  \
            fprintf(stderr, "%s returned %d\n", #call, (int)result_);  \
            exit(1);                                                   \
        }                                                              \
    } while (0)

/* A network address: the lengths, the host's address, the discriminator. VIP_NET_ADDRESS has room
 * for the first byte of these only. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 16 + 64];
} address;

/* The address of this host at which `name` waits or calls. */
static inline address address_of(VIP_NIC_HANDLE nic, const char *name)
{
    VIP_NIC_ATTRIBUTES device;
    address result;
    memset(&result, 0, sizeof result);
    MUST(VipQueryNic(nic, &device));
    result.net.HostAddressLen = device.NicAddressLen;
    result.net.DiscriminatorLen = (VIP_UINT16)strlen(name);
    memcpy(result.bytes + 4, device.LocalNicAddress, device.NicAddressLen);
    memcpy(result.bytes + 4 + device.NicAddressLen, name, strlen(name));
    return result;
}

/* An open device with a protection tag; every VI and region of an example carries this tag. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
} device;

static inline device open_device(const char *name)
{
    device result;
    MUST(VipOpenNic(name, &result.nic));
    MUST(VipCreatePtag(result.nic, &result.tag));
    return result;
}

static inline void close_device(device *opened)
{
    MUST(VipDestroyPtag(opened->nic, opened->tag));
    MUST(VipCloseNic(opened->nic));
}

/* Registers memory; peers may write to it by RDMA if `writable`. */
static inline VIP_MEM_HANDLE register_memory(device *opened, void *memory, size_t bytes, int writable)
{
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE handle;
    memset(&attributes, 0, sizeof attributes);
    attributes.Ptag = opened->tag;
    attributes.EnableRdmaWrite = writable ? VIP_TRUE : VIP_FALSE;
    MUST(VipRegisterMem(opened->nic, memory, bytes, &attributes, &handle));
    return handle;
}

/* A VI for messages of up to 4096 bytes on Reliable Delivery. A queue without CQ is waited for itself. */
static inline VIP_VI_HANDLE create_vi(device *opened, VIP_CQ_HANDLE receives)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_VI_HANDLE vi;
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = 4096;
    attributes.Ptag = opened->tag;
    attributes.EnableRdmaWrite = VIP_TRUE;
    MUST(VipCreateVi(opened->nic, &attributes, NULL, receives, &vi));
    return vi;
}

/* Makes a descriptor describe one buffer. */
static inline void describe(VIP_DESCRIPTOR *d, void *buffer, VIP_MEM_HANDLE memory, size_t bytes)
{
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Length = (VIP_UINT32)bytes;
    d->DS[0].Local.Data.Address = buffer;
    d->DS[0].Local.Handle = memory;
    d->DS[0].Local.Length = (VIP_UINT32)bytes;
}

/* The device named by the first argument, or the loopback device. */
static inline const char *device_name(int argc, char **argv)
{
    return argc > 1 ? argv[1] : "/dev/via_lo";
}

#endif
