#if defined(VIPL095)
#undef VIPL_CLAN_DIALECT
#endif

#if !defined(VIPL_NO_ALIASES) && !defined(VIP_ERROR)
#define VIP_ERROR VIP_DESCRIPTOR_ERROR
#endif

/* Names of the cLAN header that no function here uses. */
typedef void *VIP_EVENT_HANDLE;
typedef long VIP_LONG;
typedef short VIP_SHORT;

#define VIP_TRUE                 1
#define VIP_FALSE                0
#define VIP_INFINITE             (~0UL) /* No time limit. */
#define VIP_DESCRIPTOR_ALIGNMENT 64     /* Descriptors begin at multiples of this many bytes. */
#define VIP_SMI_AUTODISCOVERY    1UL

#define VIP_SERVICE_UNRELIABLE         0x01
#define VIP_SERVICE_RELIABLE_DELIVERY  0x02
#define VIP_SERVICE_RELIABLE_RECEPTION 0x04
#define VIP_BASE_SERVICES              0x07      /* The three levels together (cLAN). */
#define VIP_SERVICE_ACK                (1 << 14) /* cLAN's "acknowledged" service bit. */
#define VIP_SERVICE_DFC                (1 << 15) /* cLAN's "deferred" service bit. */

#define VIP_CONTROL_OP_SENDRECV  0x0000
#define VIP_CONTROL_OP_RDMAWRITE 0x0001
#define VIP_CONTROL_OP_RDMAREAD  0x0002
#define VIP_CONTROL_OP_RESERVED  0x0003
#define VIP_CONTROL_OP_MASK      0x0003
#define VIP_CONTROL_IMMEDIATE    0x0004
#define VIP_CONTROL_QFENCE       0x0008
#define VIP_CONTROL_RESERVED     0xFFF0

#define VIP_STATUS_DONE                 0x00000001u
#define VIP_STATUS_FORMAT_ERROR         0x00000002u
#define VIP_STATUS_PROTECTION_ERROR     0x00000004u
#define VIP_STATUS_LENGTH_ERROR         0x00000008u
#define VIP_STATUS_PARTIAL_ERROR        0x00000010u
#define VIP_STATUS_DESC_FLUSHED_ERROR   0x00000020u
#define VIP_STATUS_TRANSPORT_ERROR      0x00000040u
#define VIP_STATUS_RDMA_PROT_ERROR      0x00000080u
#define VIP_STATUS_REMOTE_DESC_ERROR    0x00000100u
#define VIP_STATUS_ERROR_MASK           0x000001FEu
#define VIP_STATUS_OP_SEND              0x00000000u
#define VIP_STATUS_OP_RECEIVE           0x00010000u
#define VIP_STATUS_OP_RDMA_WRITE        0x00020000u
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x00030000u
#define VIP_STATUS_OP_RDMA_READ         0x00040000u
#define VIP_STATUS_OP_MASK              0x00070000u
#define VIP_STATUS_IMMEDIATE            0x00080000u
#define VIP_STATUS_RESERVED             0xFFF0FE00u
