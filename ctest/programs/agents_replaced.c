/* The agents of two hosts are killed, and others take their places, while a server waits.
 *
 *   agents_replaced FOLDER       the next agents make the connection, on the NICs that are open
 *   agents_replaced FOLDER deaf  they cannot, and the server is told: VipConnectWait fails
 *
 * The test that runs this kills the agents when the file `kill` is in the folder, and makes `replaced` when the next ones are
 * there. */
#include "common.h"

static const char *in_folder(char path[512], const char *folder, const char *name)
{
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

static void make_file(const char *folder, const char *name)
{
    char path[512];
    FILE *file = fopen(in_folder(path, folder, name), "w");

    CHECK(file != NULL, "fopen");
    fclose(file);
}

static void replaced(struct side *side)
{
    const struct options *options = side->extra;
    const int deaf = options->words > 1;
    address other, local, remote;
    struct node node;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE handle;
    VIP_DESCRIPTOR *in, *out;
    unsigned char *received, *sent;
    char path[512];
    double start;
    VIP_RETURN code;

    open_node(&node, side->device, 1 << 16);
    other = swap_addresses(side, &node);
    vi = make_vi(&node, VIP_SERVICE_RELIABLE_DELIVERY, NULL, NULL);
    in = take_descriptor(&node, 1);
    out = take_descriptor(&node, 1);
    received = take(&node, 100);
    sent = take(&node, 100);
    post_recv(&node, vi, in, received, 100);
    local = local_point(&node, side->run, side->number ? "client" : "server");
    meet(side);
    if (side->number == 0) {
        make_file(options->word[0], "kill");
        code = VipConnectWait(node.nic, &local.net, 4 * PATIENCE, &remote.net, &attributes, &handle);
        if (deaf) {
            CHECK_RETURN(code, VIP_ERROR_RESOURCE, "agents_replaced: a server that nobody reaches is told");
            ok("a server that nobody reaches is told");
        } else {
            CHECK_RETURN(code, VIP_SUCCESS, "agents_replaced: a client of another host");
            CHECK_RETURN(VipConnectAccept(handle, vi), VIP_SUCCESS, "agents_replaced: a client of another host");
            post_send(&node, vi, out, sent, 100);
            EXPECT_SEND(vi, out, STATUS_SENT, "agents_replaced: data");
            ok("the next agents connect two hosts on NICs that were open");
        }
    } else if (!deaf) {
        start = now_ms();
        while (access(in_folder(path, options->word[0], "replaced"), F_OK) != 0) {
            CHECK(now_ms() - start < 4 * (double)PATIENCE, "agents_replaced: the next agents");
            sleep_ms(1);
        }
        remote = remote_point(&other, side->run, "server");
        /* The other host's server may change to its next agent a little later. */
        while ((code = VipConnectRequest(vi, &local.net, &remote.net, 2000, &attributes)) != VIP_SUCCESS) {
            CHECK(code == VIP_TIMEOUT || code == VIP_NO_MATCH || code == VIP_NOT_REACHABLE || code == VIP_ERROR_RESOURCE,
                  "agents_replaced: a request at the next agents");
            CHECK(now_ms() - start < 4 * (double)PATIENCE, "agents_replaced: a client of another host");
        }
        EXPECT_RECV(vi, in, STATUS_RECEIVED, "agents_replaced: data");
    }
    meet(side);
    end_vi(vi);
    close_node(&node);
}

static struct options the_options;

static void with_options(struct side *side)
{
    side->extra = &the_options;
    replaced(side);
}

int main(int argc, char **argv)
{
    the_options = parse_options(argc, argv);
    CHECK(the_options.words >= 1, "agents_replaced FOLDER [deaf]");
    both_sides(&the_options, with_options);
    return 0;
}
