/* Opens each device named on the command line and says what came of it; nothing else.
 *
 *   opens NAME...
 *   opens -w FOLDER NAME   the first try must fail; then the program makes the file `tried` in the folder and
 *                          waits for the file `go` there; a second try must work, in the same process */
#include "common.h"

#include <fcntl.h>

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

    start_showing();
    if (argc == 4 && strcmp(argv[1], "-w") == 0) {
        CHECK_RETURN(try_open(argv[3]), VIP_INVALID_PARAMETER, "MOD-03");
        CHECK_EQ(chdir(argv[2]), 0, "the folder");
        CHECK(creat("tried", 0600) >= 0, "the file `tried`");
        for (i = 0; access("go", F_OK) != 0; i++) {
            CHECK(i < 20000, "the file `go`");
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
