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
