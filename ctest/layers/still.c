/* A program whose trace is on a disk that stands still (still_disk.c). */
#include "common.h"

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    struct node node;

    open_node(&node, options.device, 1 << 16);
    /* The layer's thread writes what was called before. */
    sleep_ms(1000);
    close_node(&node);
    ok("the program ends");
    return 0;
}
