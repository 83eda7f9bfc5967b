/* The plug-in `window`: the example, which reads its descriptors by their numbers and copies their segments itself, as a
 * plug-in does whose device has several of them in progress. */
#define vipl_plugin_v1 example_plugin
#include "../../examples/plugin.c"
#undef vipl_plugin_v1

/* Copies a message segment by segment. 0: an address is bad, or the segments have changed. */
static int copy_out(const vipl_request *request, unsigned char *to)
{
    VIP_DATA_SEGMENT segment;
    uint32_t number, copied = 0;

    for (number = 0; number < request->segment_count; number++) {
        if (!host->segment(request, number, &segment) || segment.Length > request->length - copied)
            return 0;
        if (!host->copy(to + copied, (const void *)(uintptr_t)segment.Data.AddressBits, segment.Length))
            return 0;
        copied += segment.Length;
    }
    return copied == request->length;
}

static void window_send(vipl_vi *vi)
{
    struct link *link = vi->context;
    vipl_request request;

    request.size = sizeof request;
    /* what follows the oldest one is read, too, and stays as it is */
    host->send_at(vi, vi->send.posted - 1, &request);
    while (is_connected(vi) && vi->send.completed != vi->send.posted &&
           link->sent - __atomic_load_n(&link->out->taken, __ATOMIC_ACQUIRE) < SLOTS) {
        struct slot *slot = &link->out->slots[link->sent % SLOTS];

        if (!host->send_at(vi, vi->send.completed, &request)) {
            host->refuse(vi, &vi->send, request.fault);
        } else if (request.number != vi->send.completed) {
            abort();
        } else if (request.operation != VIP_STATUS_OP_SEND) {
            host->refuse(vi, &vi->send, VIP_STATUS_FORMAT_ERROR | request.operation);
        } else if (!copy_out(&request, slot->data)) {
            host->refuse(vi, &vi->send, VIP_STATUS_PROTECTION_ERROR | request.operation);
        } else {
            slot->length = request.length;
            slot->flagged = request.flagged;
            slot->immediate = request.immediate;
            __atomic_store_n(&link->out->sent, ++link->sent, __ATOMIC_RELEASE);
            host->complete(vi, &vi->send, VIP_STATUS_OP_SEND, 0, 0);
        }
    }
    report_to_peer_if_broken(vi);
}

static void window_progress(vipl_vi *vi)
{
    progress(vi);
    if (is_connected(vi))
        window_send(vi);
}

/* A device would be given the segments now; the message that comes decides about their faults. */
static void window_recv(vipl_vi *vi)
{
    vipl_request request;

    request.size = sizeof request;
    if (host->receive_at(vi, vi->recv.posted - 1, 0, &request) && request.operation != VIP_STATUS_OP_RECEIVE)
        abort();
    if (host->receive_at(vi, vi->recv.posted, 0, &request) || request.fault != 0)
        abort(); /* no such descriptor is posted */
}

static int window_init(const vipl_host *given, vipl_provider *out)
{
    int status = init(given, out);

    out->device = NULL;
    out->post_send = window_send;
    out->post_recv = window_recv;
    out->progress = window_progress;
    return status;
}

extern const vipl_plugin vipl_plugin_v1;
const vipl_plugin vipl_plugin_v1 = {
    .magic = VIPL_PLUGIN_MAGIC,
    .size = sizeof(vipl_plugin),
    .abi_major = VIPL_PLUGIN_ABI_MAJOR,
    .abi_minor = VIPL_PLUGIN_ABI_MINOR,
    .fingerprint = VIPL_PLUGIN_FINGERPRINT,
    .kind = VIPL_KIND_PROVIDER,
    .name = "window",
    .version = "1.0",
    .init = window_init,
};
