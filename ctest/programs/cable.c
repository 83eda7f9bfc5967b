/* A cable that is cut while two hosts exchange data. The test that runs this cuts it when it reads the line
 * `cut`, and the mending, if any, on its own.
 *
 *   cable survive [S]  messages both ways for five seconds, or S; every one arrives, in order, byte by byte
 *   cable lose         messages both ways until the connection ends; both sides are told, by CONN_LOST or by
 *                      a descriptor, and the VI is in Error
 */
#include "common.h"

#define BYTES 20000
#define BUSY_S 5

/* What a send or receive that the connection did not survive may say. */
static int is_lost(VIP_RETURN result, VIP_DESCRIPTOR *found)
{
    return result == VIP_DESCRIPTOR_ERROR && found != NULL &&
           (control(found)->Status & (VIP_STATUS_TRANSPORT_ERROR | VIP_STATUS_DESC_FLUSHED_ERROR)) != 0;
}

static void cable(struct side *side)
{
    const struct options *options = side->extra;
    const int lose = strcmp(options->word[0], "lose") == 0;
    const double busy_ms = 1000.0 * (options->words > 1 ? atoi(options->word[1]) : BUSY_S);
    VIP_DESCRIPTOR *in[2], *out, *found;
    unsigned char *received[2], *sent;
    unsigned long round = 0;
    struct node node;
    address other;
    VIP_VI_HANDLE vi;
    VIP_RETURN result = VIP_SUCCESS;
    int last = 0, i;
    double start;

    open_node(&node, side->device, 1 << 20);
    other = swap_addresses(side, &node);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    out = take_descriptor(&node, 1);
    sent = take(&node, BYTES);
    for (i = 0; i < 2; i++) {
        in[i] = take_descriptor(&node, 1);
        received[i] = take(&node, BYTES);
        post_recv(&node, vi, in[i], received[i], BYTES);
    }
    join_sides(side, &node, vi, &other, "cable");
    meet(side);
    forget_errors(&node);
    start = now_ms();
    if (side->number == 0) {
        printf("cut\n");
        fflush(stdout);
    }
    /* to and fro; a message of one byte is the last one of its sender */
    while (!last) {
        size_t bytes = side->number == 0 && !lose && now_ms() - start > busy_ms ? 1 : BYTES;

        if (side->number == 0) {
            fill(sent, bytes, round);
            post_send(&node, vi, out, sent, bytes);
            result = VipSendWait(vi, VIP_INFINITE, &found);
            if (result != VIP_SUCCESS)
                break;
        }
        result = VipRecvWait(vi, VIP_INFINITE, &found);
        if (result != VIP_SUCCESS)
            break;
        last = control(found)->Length == 1;
        CHECK(found == in[round % 2], "XFER-13");
        CHECK(filled(received[round % 2], control(found)->Length, round), "XFER-02");
        if (!last)
            post_recv(&node, vi, found, received[round % 2], BYTES);
        if (side->number == 1) {
            bytes = control(found)->Length;
            fill(sent, bytes, round);
            post_send(&node, vi, out, sent, bytes);
            result = VipSendWait(vi, VIP_INFINITE, &found);
            if (result != VIP_SUCCESS)
                break;
        }
        round++;
    }
    if (lose) {
        CHECK(is_lost(result, found), "E5");
        AWAIT_STATE(vi, VIP_STATE_ERROR, "E5");
        ok("side %d: told after %lu messages", side->number, round);
    } else {
        CHECK_RETURN(result, VIP_SUCCESS, "E4");
        ok("side %d: %lu messages", side->number, round);
    }
    meet(side);
    end_vi(vi);
    close_node(&node);
}

static struct options the_options;

static void with_options(struct side *side)
{
    side->extra = &the_options;
    cable(side);
}

int main(int argc, char **argv)
{
    the_options = parse_options(argc, argv);
    if (the_options.words < 1) {
        fprintf(stderr, "usage: %s [-d DEVICE] survive [SECONDS]|lose\n", argv[0]);
        return 2;
    }
    both_sides(&the_options, with_options);
    return 0;
}
