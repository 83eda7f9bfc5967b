/* A libvipl.so of another vendor: the functions are there, and none of them does anything. A program linked
 * with it must run on the real library under LD_PRELOAD. */
#include "vipl.h"

#define STUB(name, parameters) \
    VIP_RETURN name parameters { return VIP_ERROR_NOT_SUPPORTED; }

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

typedef void vi_handler(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_DESCRIPTOR *);
typedef void cq_handler(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_BOOLEAN);
typedef void error_handler(VIP_PVOID, VIP_ERROR_DESCRIPTOR *);

STUB(VipOpenNic, (const VIP_CHAR *a, VIP_NIC_HANDLE *b))
STUB(VipCloseNic, (VIP_NIC_HANDLE a))
STUB(VipQueryNic, (VIP_NIC_HANDLE a, VIP_NIC_ATTRIBUTES *b))
STUB(VipCreateVi, (VIP_NIC_HANDLE a, VIP_VI_ATTRIBUTES *b, VIP_CQ_HANDLE c, VIP_CQ_HANDLE d, VIP_VI_HANDLE *e))
STUB(VipDestroyVi, (VIP_VI_HANDLE a))
STUB(VipQueryVi, (VIP_VI_HANDLE a, VIP_VI_STATE *b, VIP_VI_ATTRIBUTES *c, VIP_BOOLEAN *d, VIP_BOOLEAN *e))
STUB(VipSetViAttributes, (VIP_VI_HANDLE a, VIP_VI_ATTRIBUTES *b))
STUB(VipConnectWait, (VIP_NIC_HANDLE a, VIP_NET_ADDRESS *b, VIP_ULONG c, VIP_NET_ADDRESS *d, VIP_VI_ATTRIBUTES *e,
                      VIP_CONN_HANDLE *f))
STUB(VipConnectAccept, (VIP_CONN_HANDLE a, VIP_VI_HANDLE b))
STUB(VipConnectReject, (VIP_CONN_HANDLE a))
STUB(VipConnectRequest, (VIP_VI_HANDLE a, VIP_NET_ADDRESS *b, VIP_NET_ADDRESS *c, VIP_ULONG d, VIP_VI_ATTRIBUTES *e))
STUB(VipDisconnect, (VIP_VI_HANDLE a))
STUB(VipConnectPeerRequest, (VIP_VI_HANDLE a, VIP_NET_ADDRESS *b, VIP_NET_ADDRESS *c, VIP_ULONG d))
STUB(VipConnectPeerDone, (VIP_VI_HANDLE a, VIP_VI_ATTRIBUTES *b))
STUB(VipConnectPeerWait, (VIP_VI_HANDLE a, VIP_VI_ATTRIBUTES *b))
STUB(VipCreatePtag, (VIP_NIC_HANDLE a, VIP_PROTECTION_HANDLE *b))
STUB(VipDestroyPtag, (VIP_NIC_HANDLE a, VIP_PROTECTION_HANDLE b))
STUB(VipRegisterMem, (VIP_NIC_HANDLE a, VIP_PVOID b, VIP_ULONG c, VIP_MEM_ATTRIBUTES *d, VIP_MEM_HANDLE *e))
STUB(VipDeregisterMem, (VIP_NIC_HANDLE a, VIP_PVOID b, VIP_MEM_HANDLE c))
STUB(VipQueryMem, (VIP_NIC_HANDLE a, VIP_PVOID b, VIP_MEM_HANDLE c, VIP_MEM_ATTRIBUTES *d))
STUB(VipSetMemAttributes, (VIP_NIC_HANDLE a, VIP_PVOID b, VIP_MEM_HANDLE c, VIP_MEM_ATTRIBUTES *d))
STUB(VipPostSend, (VIP_VI_HANDLE a, VIP_DESCRIPTOR *b, VIP_MEM_HANDLE c))
STUB(VipPostRecv, (VIP_VI_HANDLE a, VIP_DESCRIPTOR *b, VIP_MEM_HANDLE c))
STUB(VipSendDone, (VIP_VI_HANDLE a, VIP_DESCRIPTOR **b))
STUB(VipRecvDone, (VIP_VI_HANDLE a, VIP_DESCRIPTOR **b))
STUB(VipSendWait, (VIP_VI_HANDLE a, VIP_ULONG b, VIP_DESCRIPTOR **c))
STUB(VipRecvWait, (VIP_VI_HANDLE a, VIP_ULONG b, VIP_DESCRIPTOR **c))
STUB(VipSendNotify, (VIP_VI_HANDLE a, VIP_PVOID b, vi_handler *c))
STUB(VipRecvNotify, (VIP_VI_HANDLE a, VIP_PVOID b, vi_handler *c))
STUB(VipCreateCQ, (VIP_NIC_HANDLE a, VIP_ULONG b, VIP_CQ_HANDLE *c))
STUB(VipDestroyCQ, (VIP_CQ_HANDLE a))
STUB(VipResizeCQ, (VIP_CQ_HANDLE a, VIP_ULONG b))
STUB(VipCQDone, (VIP_CQ_HANDLE a, VIP_VI_HANDLE *b, VIP_BOOLEAN *c))
STUB(VipCQWait, (VIP_CQ_HANDLE a, VIP_ULONG b, VIP_VI_HANDLE *c, VIP_BOOLEAN *d))
STUB(VipCQNotify, (VIP_CQ_HANDLE a, VIP_PVOID b, cq_handler *c))
STUB(VipQuerySystemManagementInfo, (VIP_NIC_HANDLE a, VIP_ULONG b, VIP_PVOID c))
STUB(VipErrorCallback, (VIP_NIC_HANDLE a, VIP_PVOID b, error_handler *c))
STUB(VipNSInit, (VIP_NIC_HANDLE a, VIP_PVOID b))
STUB(VipNSShutdown, (VIP_NIC_HANDLE a))
STUB(VipNSGetHostByName, (VIP_NIC_HANDLE a, VIP_CHAR *b, VIP_NET_ADDRESS *c, VIP_ULONG d))
STUB(VipNSGetHostByAddr, (VIP_NIC_HANDLE a, VIP_NET_ADDRESS *b, VIP_CHAR *c, VIP_ULONG *d))

void VipSetUserData(VIP_VI_HANDLE a, VIP_PVOID b) {}

VIP_PVOID VipGetUserData(VIP_VI_HANDLE a)
{
    return 0;
}
