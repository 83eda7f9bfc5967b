/* All 41 functions of spec §3.1 to §3.34 and the two user-data functions are there, under their plain
 * names, in the library that the argument names (ABI-12). Not linked with libvipl. */
#include "common.h"

#include <dlfcn.h>

static const char *const names[] = {
    "VipOpenNic", "VipCloseNic", "VipQueryNic", "VipCreateVi", "VipDestroyVi", "VipQueryVi",
    "VipSetViAttributes", "VipConnectWait", "VipConnectAccept", "VipConnectReject",
    "VipConnectRequest", "VipDisconnect", "VipConnectPeerRequest", "VipConnectPeerDone",
    "VipConnectPeerWait", "VipCreatePtag", "VipDestroyPtag", "VipRegisterMem", "VipDeregisterMem",
    "VipQueryMem", "VipSetMemAttributes", "VipPostSend", "VipPostRecv", "VipSendDone", "VipRecvDone",
    "VipSendWait", "VipRecvWait", "VipSendNotify", "VipRecvNotify", "VipCreateCQ", "VipDestroyCQ",
    "VipResizeCQ", "VipCQDone", "VipCQWait", "VipCQNotify", "VipQuerySystemManagementInfo",
    "VipErrorCallback", "VipNSInit", "VipNSShutdown", "VipNSGetHostByName", "VipNSGetHostByAddr",
    "VipSetUserData", "VipGetUserData",
};

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    void *library = dlopen(options.words > 0 ? options.word[0] : "libvipl.so.1", RTLD_NOW | RTLD_LOCAL);
    size_t i;

    if (library == NULL) {
        printf("FAIL %s\n", dlerror());
        return 1;
    }
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (dlsym(library, names[i]) == NULL) {
            printf("FAIL ABI-12: %s is not exported\n", names[i]);
            return 1;
        }
    }
    CHECK_EQ(i, 43, "ABI-12");
    ok("all %d functions are exported", (int)i);
    CHECK_EQ(dlclose(library), 0, "dlclose");
    return 0;
}
