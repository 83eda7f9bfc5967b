
/* "VIPLPLUG" read as little-endian. */
#define VIPL_PLUGIN_MAGIC       UINT64_C(0x47554C504C504956)
/* A new major version is a new symbol and a new directory. */
#define VIPL_PLUGIN_ABI_MAJOR   1
/* Counts additions to the sized structures. Two files of the same minor version have the same
 * sizes; those of a lower one are not larger, those of a higher one not smaller. */
#define VIPL_PLUGIN_ABI_MINOR   2
/* Sizes of what has no size field: `vipl_vi`, `vipl_nic`, `vipl_queue`, `vipl_entry`,
 * `vipl_region`, and a pointer. */
#define VIPL_PLUGIN_FINGERPRINT \
  ((((uint64_t)sizeof(vipl_vi)) << 40) \
   | (((uint64_t)sizeof(vipl_nic)) << 32) \
   | (((uint64_t)sizeof(vipl_queue)) << 24) \
   | (((uint64_t)sizeof(vipl_entry)) << 16) \
   | (((uint64_t)sizeof(vipl_region)) << 8) \
   | (uint64_t)sizeof(size_t))
/* Kind of a plug-in that serves devices. */
#define VIPL_KIND_PROVIDER      1
/* Kind of a plug-in that sees the calls of the application; the file is libvipl_layer_NAME.so. */
#define VIPL_KIND_LAYER         2

/* Longest host address in bytes. */
#define VIPL_ADDRESS_MAX      32
/* Form of a host address: bytes without a meaning outside its network. */
#define VIPL_ADDRESS_BYTES    0
/* Form of a host address: an IP address and the UDP port of the host's agent. */
#define VIPL_ADDRESS_IP       1
/* Ethertype of the frames of a data socket that the agent opens on an Ethernet interface, one of
 * the two reserved for local experiments. */
#define VIPL_DATA_ETHERTYPE   0x88B5
/* Where such a frame names the endpoint that it is for, in bytes from the start of the Ethernet
 * header: 16 bits, big-endian. */
#define VIPL_ENDPOINT_OFFSET  16
/* Longest data address in bytes. */
#define VIPL_DATA_ADDRESS_MAX 256

/* Kind of a setting: any text. */
#define VIPL_SETTING_TEXT     0
/* Kind of a setting: true or false; the plug-in gets `1` or `0`. */
#define VIPL_SETTING_BOOLEAN  1
/* Kind of a setting: a whole number from `minimum` to `maximum`. */
#define VIPL_SETTING_NUMBER   2
/* Kind of a setting: a number of bytes from `minimum` to `maximum`, given as `65536` or `64k`;
 * the plug-in gets digits. */
#define VIPL_SETTING_BYTES    3
/* Kind of a setting: a number with a point, from `minimum` to `maximum` millionths. */
#define VIPL_SETTING_FRACTION 4

/* Status of an operation: success. */
#define VIPL_OK              0
/* Status of an operation: a resource is exhausted. */
#define VIPL_E_RESOURCE      (-1)
/* Status of an operation: an argument is invalid, for instance the name of a device. */
#define VIPL_E_INVALID       (-2)
/* Status of an operation: not part of this plug-in. */
#define VIPL_E_NOT_SUPPORTED (-3)
/* Status of an operation: the user lacks a permission; the log says which. */
#define VIPL_E_NOT_PERMITTED (-4)

/* Bit of vipl_region's access word: may be written by RDMA. */
#define VIPL_REGION_RDMA_WRITE 1
/* Bit of vipl_region's access word: may be read by RDMA. */
#define VIPL_REGION_RDMA_READ  2
/* Tag of a VI that matches every region of its NIC (compatible mode). */
#define VIPL_PTAG_ANY          0
/* Tag of a region without one: matches every VI of its NIC (compatible mode). */
#define VIPL_PTAG_NONE         UINT32_C(0xFFFFFFFF)

/* Option bit of vipl_nic: immediate data travels also when the flag is not set. */
#define VIPL_OPTION_CARRY_IMMEDIATE     1
/* Option bit of vipl_nic: the memory handle of a descriptor is checked, also at its completion. */
#define VIPL_OPTION_CHECK_DESCRIPTOR    2
/* Option bit of vipl_nic: the data segments of a receive descriptor are checked whole. Else they
 * are checked as far as the message reaches. */
#define VIPL_OPTION_CHECK_RECEIVE_WHOLE 4

/* `fail`: a descriptor has reported the cause, so no asynchronous error is raised. */
#define VIPL_CAUSE_REPORTED     (-1)
/* `fail`: the peer disconnected in good order. */
#define VIPL_CAUSE_DISCONNECTED (-2)

#define VIPL_POLL_NOTHING  0 /* `poll`: nothing completed. */
#define VIPL_POLL_PROGRESS 1 /* `poll`: some descriptor completed. */
/* `poll`: nothing was done, because the program is using the VI itself. Ask again before
 * sleeping. */
#define VIPL_POLL_BUSY     2

#define VIPL_LOG_ERROR 1 /* Log level of `log`. */
#define VIPL_LOG_WARN  2 /* Log level of `log`. */
#define VIPL_LOG_INFO  3 /* Log level of `log`. */
#define VIPL_LOG_DEBUG 4 /* Log level of `log`. */

#define VIPL_CALL_ARGUMENTS 8    /* Room for the arguments of a vipl_call. */
#define VIPL_LAYER_WORDS    4    /* Words that a layer has for one call, from `before` to `after`. */
#define VIPL_CALL_LEFT      (-1) /* `after`: the thread was cancelled in the call. */
#define VIPL_EVENT_ERROR    1    /* An asynchronous error is raised. */
#define VIPL_EVENT_HANDLER  2    /* The handler of a notify request is about to be called. */

/* `vipl_call.function`. */
#define VIPL_CALL_OPEN_NIC                       1
#define VIPL_CALL_CLOSE_NIC                      2
#define VIPL_CALL_QUERY_NIC                      3
#define VIPL_CALL_CREATE_VI                      4
#define VIPL_CALL_DESTROY_VI                     5
#define VIPL_CALL_QUERY_VI                       6
#define VIPL_CALL_SET_VI_ATTRIBUTES              7
#define VIPL_CALL_SET_USER_DATA                  8
#define VIPL_CALL_GET_USER_DATA                  9
#define VIPL_CALL_CONNECT_WAIT                   10
#define VIPL_CALL_CONNECT_ACCEPT                 11
#define VIPL_CALL_CONNECT_REJECT                 12
#define VIPL_CALL_CONNECT_REQUEST                13
#define VIPL_CALL_DISCONNECT                     14
#define VIPL_CALL_CONNECT_PEER_REQUEST           15
#define VIPL_CALL_CONNECT_PEER_DONE              16
#define VIPL_CALL_CONNECT_PEER_WAIT              17
#define VIPL_CALL_CREATE_PTAG                    18
#define VIPL_CALL_DESTROY_PTAG                   19
#define VIPL_CALL_REGISTER_MEM                   20
#define VIPL_CALL_DEREGISTER_MEM                 21
#define VIPL_CALL_QUERY_MEM                      22
#define VIPL_CALL_SET_MEM_ATTRIBUTES             23
#define VIPL_CALL_POST_SEND                      24
#define VIPL_CALL_POST_RECV                      25
#define VIPL_CALL_SEND_DONE                      26
#define VIPL_CALL_RECV_DONE                      27
#define VIPL_CALL_SEND_WAIT                      28
#define VIPL_CALL_RECV_WAIT                      29
#define VIPL_CALL_SEND_NOTIFY                    30
#define VIPL_CALL_RECV_NOTIFY                    31
#define VIPL_CALL_CREATE_CQ                      32
#define VIPL_CALL_DESTROY_CQ                     33
#define VIPL_CALL_RESIZE_CQ                      34
#define VIPL_CALL_CQ_DONE                        35
#define VIPL_CALL_CQ_WAIT                        36
#define VIPL_CALL_CQ_NOTIFY                      37
#define VIPL_CALL_ERROR_CALLBACK                 38
#define VIPL_CALL_QUERY_SYSTEM_MANAGEMENT_INFO   39
#define VIPL_CALL_NS_INIT                        40
#define VIPL_CALL_NS_GET_HOST_BY_NAME            41
#define VIPL_CALL_NS_GET_HOST_BY_ADDR            42
#define VIPL_CALL_NS_SHUTDOWN                    43
#define VIPL_CALL_ALLOC                          44
#define VIPL_CALL_FREE                           45
#define VIPL_CALL_DESCRIBE                       46
#define VIPL_CALL_CQ_FD                          47
#define VIPL_CALL_CQ_ARM                         48
