/* What the examples share: one check, one address, one region with its descriptors. */

#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vipl.h>
#include <vipl_ext.h>

/* Calls a function that must succeed. Otherwise the program ends and says what the code means; why the call
 * failed and what to do, the library has said in a line before this one. */
#define MUST(call) must((call), #call, __FILE__, __LINE__)

static inline void must(VIP_RETURN result, const char *call, const char *file, int line)
{
    if (result == VIP_SUCCESS)
        return;
    fprintf(stderr, "%s:%d: %s:\n    %s\n", file, line, call, vipl_strerror((int)result));
    exit(1);
}

/* A network address: the lengths, the host's address, the discriminator. VIP_NET_ADDRESS has room
 * for the first byte of these only. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 16 + 64];
} address;

/* An open device with a protection tag; every VI and region of an example carries this tag. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_NIC_ATTRIBUTES attributes;
} device;

static inline device open_device(const char *name)
{
    device result;
    MUST(VipOpenNic(name, &result.nic));
    MUST(VipQueryNic(result.nic, &result.attributes));
    MUST(VipCreatePtag(result.nic, &result.tag));
    return result;
}

static inline void close_device(device *opened)
{
    MUST(VipDestroyPtag(opened->nic, opened->tag));
    MUST(VipCloseNic(opened->nic));
}

/* Whether peers on Reliable Delivery can read memory of this device's programs. */
static inline int has_rdma_read(const device *opened)
{
    return (opened->attributes.RDMAReadSupport & VIP_SERVICE_RELIABLE_DELIVERY) != 0;
}

/* The address of this host at which `name` waits or calls. */
static inline address address_of(VIP_NIC_HANDLE nic, const char *name)
{
    VIP_NIC_ATTRIBUTES attributes;
    address result;
    memset(&result, 0, sizeof result);
    MUST(VipQueryNic(nic, &attributes));
    result.net.HostAddressLen = attributes.NicAddressLen;
    result.net.DiscriminatorLen = (VIP_UINT16)strlen(name);
    memcpy(result.bytes + 4, attributes.LocalNicAddress, attributes.NicAddressLen);
    memcpy(result.bytes + 4 + attributes.NicAddressLen, name, strlen(name));
    return result;
}

/* The address of another host, which the name service knows, or of this one if `host` is NULL. */
static inline address address_at(VIP_NIC_HANDLE nic, const char *host, const char *name)
{
    address result = address_of(nic, name);
    char text[256];
    if (host != NULL) {
        snprintf(text, sizeof text, "%s", host);
        MUST(VipNSInit(nic, NULL));
        MUST(VipNSGetHostByName(nic, text, &result.net, 0));
        MUST(VipNSShutdown(nic));
    }
    return result;
}

/* What peers may do with a region. */
enum { LOCAL = 0, WRITABLE = 1, READABLE = 2 };

static inline VIP_MEM_HANDLE register_memory(device *opened, void *memory, size_t bytes, int rights)
{
    VIP_MEM_ATTRIBUTES attributes;
    VIP_MEM_HANDLE handle;
    memset(&attributes, 0, sizeof attributes);
    attributes.Ptag = opened->tag;
    attributes.EnableRdmaWrite = rights & WRITABLE ? VIP_TRUE : VIP_FALSE;
    attributes.EnableRdmaRead = rights & READABLE ? VIP_TRUE : VIP_FALSE;
    MUST(VipRegisterMem(opened->nic, memory, (VIP_ULONG)bytes, &attributes, &handle));
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
    attributes.EnableRdmaRead = has_rdma_read(opened) ? VIP_TRUE : VIP_FALSE;
    MUST(VipCreateVi(opened->nic, &attributes, NULL, receives, &vi));
    return vi;
}

/* Waits for one client at `name` on this host, and connects it. */
static inline void accept_client(device *opened, VIP_VI_HANDLE vi, const char *name)
{
    address here = address_of(opened->nic, name), client;
    VIP_VI_ATTRIBUTES its_vi;
    VIP_CONN_HANDLE request;
    MUST(VipConnectWait(opened->nic, &here.net, VIP_INFINITE, &client.net, &its_vi, &request));
    MUST(VipConnectAccept(request, vi));
}

/* Connects with the server that waits at `name` on this host. */
static inline void connect_server(device *opened, VIP_VI_HANDLE vi, const char *name)
{
    address server = address_of(opened->nic, name);
    VIP_VI_ATTRIBUTES its_vi;
    MUST(VipConnectRequest(vi, &server.net, &server.net, 5000, &its_vi));
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

/* What a peer must know to write or read here. */
typedef struct {
    VIP_UINT64 at;
    VIP_MEM_HANDLE memory;
    VIP_UINT32 bytes;
} window;

static inline window window_of(void *memory, VIP_MEM_HANDLE handle, size_t bytes)
{
    window result = {(VIP_UINT64)(uintptr_t)memory, handle, (VIP_UINT32)bytes};
    return result;
}

/* Makes a descriptor write a buffer to the first bytes of a peer's window, or read them
 * (VIP_CONTROL_OP_RDMAWRITE, VIP_CONTROL_OP_RDMAREAD): first the remote range, then the local buffer. */
static inline void describe_rdma(VIP_DESCRIPTOR *d, int operation, const window *to, void *buffer, VIP_MEM_HANDLE memory,
                                 size_t bytes)
{
    memset(d, 0, sizeof *d);
    d->CS.Control = (VIP_UINT16)operation;
    d->CS.SegCount = 2;
    d->CS.Length = (VIP_UINT32)bytes;
    d->DS[0].Remote.Data.AddressBits = to->at;
    d->DS[0].Remote.Handle = to->memory;
    d->DS[1].Local.Data.Address = buffer;
    d->DS[1].Local.Handle = memory;
    d->DS[1].Local.Length = (VIP_UINT32)bytes;
}

/* Posts a send or an RDMA operation and waits until it is complete. */
static inline void post_and_wait(VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    MUST(VipPostSend(vi, d, memory));
    MUST(VipSendWait(vi, VIP_INFINITE, &done));
}

/* Takes everything that is left off the queues of a VI after VipDisconnect: before it is destroyed, or connected again. */
static inline void drain(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *done;
    do
        (void)VipRecvDone(vi, &done);
    while (done != NULL);
    do
        (void)VipSendDone(vi, &done);
    while (done != NULL);
}

/* The device named by the first argument, or the loopback device. */
static inline const char *device_name(int argc, char **argv)
{
    return argc > 1 ? argv[1] : "/dev/via_lo";
}

#endif
