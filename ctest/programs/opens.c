/* Opens each device named on the command line and says what came of it; nothing else.
 *
 *   opens NAME...
 *   opens -w FILE NAME   the first try must fail; then FILE is made (by whoever reads `waiting`), and a second
 *                        try in the same process must work */
#include "common.h"

static VIP_RETURN try_open(const char *name)
{
    VIP_NIC_HANDLE nic = NULL;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_RETURN code = VipOpenNic(name, &nic);

    if (code == VIP_SUCCESS) {
        MUST(VipQueryNic(nic, &attributes));
        MUST(VipCloseNic(nic));
        printf("%s opens as %s\n", name, attributes.Name);
    } else {
        CHECK(nic == NULL, "R1");
        printf("%s does not open: %s\n", name, return_name((long)code));
    }
    fflush(stdout);
    return code;
}

int main(int argc, char **argv)
{
    int i;

    if (argc == 4 && strcmp(argv[1], "-w") == 0) {
        CHECK_RETURN(try_open(argv[3]), VIP_INVALID_PARAMETER, "MOD-03");
        for (i = 0; access(argv[2], F_OK) != 0; i++) {
            CHECK(i < 20000, "the file that is waited for");
            sleep_ms(1);
        }
        CHECK_RETURN(try_open(argv[3]), VIP_SUCCESS, "MOD-03");
        ok("a plug-in that came while the program ran");
        return 0;
    }
    for (i = 1; i < argc; i++)
        try_open(argv[i]);
    ok("%d names tried", argc - 1);
    return 0;
}
