/* COMPAT-11: a program that loads the library, works with it, and unloads it, fifty times in one process.
 * Not linked with libvipl; the argument names the library, otherwise libvipl.so.1. */
#include "common.h"

#include <dlfcn.h>

#define TIMES 50

/* The functions in use, from whichever load of the library. */
static VIP_RETURN (*open_nic)(const VIP_CHAR *, VIP_NIC_HANDLE *);
static VIP_RETURN (*close_nic)(VIP_NIC_HANDLE);
static VIP_RETURN (*query_nic)(VIP_NIC_HANDLE, VIP_NIC_ATTRIBUTES *);
static VIP_RETURN (*error_callback)(VIP_NIC_HANDLE, VIP_PVOID, void (*)(VIP_PVOID, VIP_ERROR_DESCRIPTOR *));
static VIP_RETURN (*create_ptag)(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE *);
static VIP_RETURN (*destroy_ptag)(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE);
static VIP_RETURN (*register_mem)(VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, VIP_MEM_ATTRIBUTES *, VIP_MEM_HANDLE *);
static VIP_RETURN (*deregister_mem)(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE);
static VIP_RETURN (*create_vi)(VIP_NIC_HANDLE, VIP_VI_ATTRIBUTES *, VIP_CQ_HANDLE, VIP_CQ_HANDLE, VIP_VI_HANDLE *);
static VIP_RETURN (*destroy_vi)(VIP_VI_HANDLE);
static VIP_RETURN (*connect_wait)(VIP_NIC_HANDLE, VIP_NET_ADDRESS *, VIP_ULONG, VIP_NET_ADDRESS *,
                                  VIP_VI_ATTRIBUTES *, VIP_CONN_HANDLE *);
static VIP_RETURN (*connect_accept)(VIP_CONN_HANDLE, VIP_VI_HANDLE);
static VIP_RETURN (*connect_request)(VIP_VI_HANDLE, VIP_NET_ADDRESS *, VIP_NET_ADDRESS *, VIP_ULONG,
                                     VIP_VI_ATTRIBUTES *);
static VIP_RETURN (*disconnect)(VIP_VI_HANDLE);
static VIP_RETURN (*post_send_)(VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE);
static VIP_RETURN (*post_recv_)(VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE);
static VIP_RETURN (*send_wait_)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **);
static VIP_RETURN (*recv_wait_)(VIP_VI_HANDLE, VIP_ULONG, VIP_DESCRIPTOR **);
static VIP_RETURN (*recv_notify)(VIP_VI_HANDLE, VIP_PVOID,
                                 void (*)(VIP_PVOID, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_DESCRIPTOR *));

static void *load(const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"VipOpenNic", &open_nic},
        {"VipCloseNic", &close_nic},
        {"VipQueryNic", &query_nic},
        {"VipErrorCallback", &error_callback},
        {"VipCreatePtag", &create_ptag},
        {"VipDestroyPtag", &destroy_ptag},
        {"VipRegisterMem", &register_mem},
        {"VipDeregisterMem", &deregister_mem},
        {"VipCreateVi", &create_vi},
        {"VipDestroyVi", &destroy_vi},
        {"VipConnectWait", &connect_wait},
        {"VipConnectAccept", &connect_accept},
        {"VipConnectRequest", &connect_request},
        {"VipDisconnect", &disconnect},
        {"VipPostSend", &post_send_},
        {"VipPostRecv", &post_recv_},
        {"VipSendWait", &send_wait_},
        {"VipRecvWait", &recv_wait_},
        {"VipRecvNotify", &recv_notify},
    };
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    size_t i;

    if (library == NULL)
        fail(__FILE__, __LINE__, "COMPAT-11", "dlopen", name, dlerror());
    for (i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(library, functions[i].name);

        CHECK(function != NULL, "COMPAT-11");
        memcpy(functions[i].function, &function, sizeof function);
    }
    return library;
}

struct ends {
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE server;
    address point;
};

static void *server(void *argument)
{
    struct ends *ends = (struct ends *)argument;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE request;
    address remote;

    MUST(connect_wait(ends->nic, &ends->point.net, PATIENCE, &remote.net, &attributes, &request));
    MUST(connect_accept(request, ends->server));
    return NULL;
}

static int notices;

static void notified(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor)
{
    (void)context, (void)nic, (void)vi, (void)descriptor;
    atomic_add(&notices, 1);
}

static void ignore(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
}

/* One life of the library: a connection, a message that is waited for, one that is notified. */
static void once(const char *device, int number, unsigned char *memory)
{
    VIP_DESCRIPTOR *in = (VIP_DESCRIPTOR *)(void *)memory, *out = (VIP_DESCRIPTOR *)(void *)(memory + 64);
    VIP_NIC_ATTRIBUTES nic;
    VIP_VI_ATTRIBUTES vi, remote;
    VIP_MEM_ATTRIBUTES mem;
    VIP_VI_HANDLE client;
    VIP_DESCRIPTOR *found;
    VIP_MEM_HANDLE handle;
    struct ends ends;
    pthread_t thread;
    VIP_RETURN code;
    char name[24];
    int i;

    memset(&mem, 0, sizeof mem);
    memset(&vi, 0, sizeof vi);
    MUST(open_nic(device, &ends.nic));
    MUST(query_nic(ends.nic, &nic));
    MUST(error_callback(ends.nic, NULL, ignore));
    MUST(create_ptag(ends.nic, &mem.Ptag));
    MUST(register_mem(ends.nic, memory, 4096, &mem, &handle));
    vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    vi.MaxTransferSize = 4096;
    vi.Ptag = mem.Ptag;
    MUST(create_vi(ends.nic, &vi, NULL, NULL, &ends.server));
    MUST(create_vi(ends.nic, &vi, NULL, NULL, &client));
    snprintf(name, sizeof name, "load%d", number);
    ends.point = point(nic.LocalNicAddress, nic.NicAddressLen, (int)getpid(), name);
    thread = start_thread(server, &ends);
    while ((code = connect_request(client, &ends.point.net, &ends.point.net, PATIENCE, &remote)) == VIP_NO_MATCH)
        sleep_ms(1);
    MUST(code);
    join_thread(thread);

    for (i = 0; i < 2; i++) {
        start_descriptor(in, VIP_CONTROL_OP_SENDRECV);
        add_data(in, memory + 1024, handle, 1000);
        MUST(post_recv_(ends.server, in, handle));
        notices = 0;
        if (i == 1)
            MUST(recv_notify(ends.server, NULL, notified));
        fill(memory + 2048, 1000, (unsigned long)number);
        start_descriptor(out, VIP_CONTROL_OP_SENDRECV);
        add_data(out, memory + 2048, handle, 1000);
        MUST(post_send_(client, out, handle));
        MUST(send_wait_(client, PATIENCE, &found));
        if (i == 0)
            MUST(recv_wait_(ends.server, PATIENCE, &found));
        else
            await(&notices, 1, "COMPAT-11");
        CHECK(filled(memory + 1024, 1000, (unsigned long)number), "COMPAT-11");
        memset(memory + 1024, 0, 1000);
    }
    MUST(disconnect(client));
    MUST(disconnect(ends.server));
    MUST(destroy_vi(client));
    MUST(destroy_vi(ends.server));
    MUST(deregister_mem(ends.nic, memory, handle));
    MUST(destroy_ptag(ends.nic, mem.Ptag));
    MUST(close_nic(ends.nic));
}

/* Threads and open files of this process, so that a leak per load would be seen. */
static int count_in(const char *what)
{
    char command[64];
    FILE *out;
    int n = 0;

    snprintf(command, sizeof command, "ls /proc/%d/%s | wc -l", (int)getpid(), what);
    out = popen(command, "r");
    CHECK(out != NULL && fscanf(out, "%d", &n) == 1, "ls");
    pclose(out);
    return n;
}

/* No more than `most` are left. The library's threads end by themselves after VipCloseNic, and the last of
 * them closes the device: how soon depends on how busy the machine is. What is left behind stays for ever. */
static void none_left(const char *what, int most)
{
    double start = now_ms();

    while (count_in(what) > most) {
        CHECK(now_ms() - start < (double)PATIENCE, "COMPAT-11: nothing is left behind");
        sleep_ms(10);
    }
    shows("COMPAT-11");
}

int main(int argc, char **argv)
{
    struct options options = parse_options(argc, argv);
    const char *name = options.words > 0 ? options.word[0] : "libvipl.so.1";
    unsigned char *memory = (unsigned char *)map_pages(4096);
    int i, files = 0, threads = 0;

    for (i = 0; i < TIMES; i++) {
        void *library = load(name);

        once(options.device, i, memory);
        CHECK_EQ(dlclose(library), 0, "COMPAT-11");
        if (i == 4) {
            files = count_in("fd");
            threads = count_in("task");
        }
    }
    none_left("fd", files + 2);
    none_left("task", threads + 1);
    ok("loaded, used and unloaded %d times", TIMES);
    return 0;
}
