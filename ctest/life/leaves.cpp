// Exceptions and destructors of C++ beside the library.
//
//   leaves DEVICE throw      a handler throws: std::terminate, whose handler ends the process with 3
//   leaves DEVICE caught     it catches what it throws, and goes on
//   leaves DEVICE local      destructors of thread_local objects call the library
//   leaves DEVICE static     so do those of static objects, after main
//   leaves DEVICE cancel     a cancelled thread runs the destructors of its frames
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vipl.h>

static std::atomic<int> handled(0), destroyed(0);
static VIP_NIC_HANDLE nic;

static void must(VIP_RETURN result, const char *what)
{
    if (result == VIP_SUCCESS)
        return;
    std::printf("FAIL: %s: %d\n", what, static_cast<int>(result));
    std::fflush(nullptr);
    _exit(1);
}

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *)
{
    if (context == nullptr)
        throw std::runtime_error("from a handler");
    try {
        throw std::runtime_error("inside of a handler");
    } catch (const std::exception &) {
        handled++;
    }
}

struct Caller {
    bool used = false;
    ~Caller()
    {
        VIP_NIC_ATTRIBUTES attributes;
        if (used)
            must(VipQueryNic(nic, &attributes), "VipQueryNic in a destructor");
        destroyed++;
    }
};
static thread_local Caller local;
static Caller global;

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    const std::string what = words[2];
    alarm(60);
    must(VipOpenNic(words[1], &nic), "VipOpenNic");
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 32768, 0, nullptr, VIP_FALSE, VIP_FALSE};
    VIP_PROTECTION_HANDLE tag;
    must(VipCreatePtag(nic, &tag), "VipCreatePtag");
    attributes.Ptag = tag;
    VIP_VI_HANDLE vi;
    must(VipCreateVi(nic, &attributes, nullptr, nullptr, &vi), "VipCreateVi");
    if (what == "throw" || what == "caught") {
        std::set_terminate([] { _exit(3); });
        must(VipErrorCallback(nic, what == "throw" ? nullptr : &nic, on_error), "VipErrorCallback");
        static char memory[128] __attribute__((aligned(64)));
        VipPostSend(vi, reinterpret_cast<VIP_DESCRIPTOR *>(memory + 4), 0);
        while (handled == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (what == "local") {
        std::thread([&] {
            local.used = true;
            VIP_NIC_ATTRIBUTES found;
            must(VipQueryNic(nic, &found), "VipQueryNic");
        }).join();
        if (destroyed != 1)
            return 4;
    } else if (what == "static") {
        global.used = true;
        std::printf("ok: static\n");
        return 0;
    } else if (what == "cancel") {
        VIP_CQ_HANDLE cq;
        must(VipCreateCQ(nic, 4, &cq), "VipCreateCQ");
        std::thread waits([&] {
            Caller frame;
            frame.used = true;
            VIP_VI_HANDLE v;
            VIP_BOOLEAN recv;
            try {
                VipCQWait(cq, VIP_INFINITE, &v, &recv);
            } catch (...) {
                destroyed += 10;
                throw;
            }
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        pthread_cancel(waits.native_handle());
        waits.join();
        if (destroyed != 11)
            return 5;
        must(VipDestroyCQ(cq), "VipDestroyCQ");
    }
    must(VipDestroyVi(vi), "VipDestroyVi");
    must(VipErrorCallback(nic, nullptr, nullptr), "VipErrorCallback");
    must(VipDestroyPtag(nic, tag), "VipDestroyPtag");
    must(VipCloseNic(nic), "VipCloseNic");
    std::printf("ok: %s\n", what.c_str());
    return 0;
}
