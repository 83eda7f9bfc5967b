// The header in C++17, and a message between two VIs of one process.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "vipl.h"

namespace {

void must(VIP_RETURN code, const char *what)
{
    if (code != VIP_SUCCESS) {
        std::printf("FAIL cxx.cpp: %s: expected VIP_SUCCESS, found %d\n", what, static_cast<int>(code));
        std::fflush(stdout);
        std::_Exit(1);
    }
}
#define MUST(call) must(call, #call)

void ignore(VIP_PVOID, VIP_ERROR_DESCRIPTOR *) {}

// A network address with room for what follows it.
struct Address {
    alignas(VIP_NET_ADDRESS) std::array<unsigned char, 128> bytes{};

    Address() = default;
    Address(const VIP_NIC_ATTRIBUTES &nic, const std::string &discriminator)
    {
        get()->HostAddressLen = nic.NicAddressLen;
        get()->DiscriminatorLen = static_cast<VIP_UINT16>(discriminator.size());
        std::memcpy(bytes.data() + 4, nic.LocalNicAddress, nic.NicAddressLen);
        std::memcpy(bytes.data() + 4 + nic.NicAddressLen, discriminator.data(), discriminator.size());
    }
    VIP_NET_ADDRESS *get() { return reinterpret_cast<VIP_NET_ADDRESS *>(bytes.data()); }
};

struct alignas(VIP_DESCRIPTOR_ALIGNMENT) Room {
    VIP_DESCRIPTOR in, out;
    std::array<char, 256> received, sent;
};

void build(VIP_DESCRIPTOR &d, void *data, VIP_MEM_HANDLE handle, std::size_t bytes)
{
    d = VIP_DESCRIPTOR{};
    d.CS.Control = VIP_CONTROL_OP_SENDRECV;
    d.CS.SegCount = 1;
    d.CS.Length = static_cast<VIP_UINT32>(bytes);
    d.DS[0].Local.Data.Address = data;
    d.DS[0].Local.Handle = handle;
    d.DS[0].Local.Length = static_cast<VIP_UINT32>(bytes);
}

} // namespace

int main()
{
    static_assert(sizeof(VIP_DESCRIPTOR) == 64, "ABI-01");
    const char *device = std::getenv("VIPL_DEVICE");
    VIP_NIC_HANDLE nic = nullptr;
    VIP_NIC_ATTRIBUTES attributes{};
    VIP_MEM_ATTRIBUTES memory{};
    VIP_VI_ATTRIBUTES vi{}, remote{};
    VIP_VI_HANDLE server = nullptr, client = nullptr;
    VIP_MEM_HANDLE handle = 0;
    VIP_DESCRIPTOR *done = nullptr;
    auto room = std::make_unique<Room>();

    MUST(VipOpenNic(device ? device : "/dev/via_lo", &nic));
    MUST(VipQueryNic(nic, &attributes));
    MUST(VipErrorCallback(nic, nullptr, ignore));
    MUST(VipCreatePtag(nic, &memory.Ptag));
    MUST(VipRegisterMem(nic, room.get(), sizeof *room, &memory, &handle));
    vi.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    vi.MaxTransferSize = 4096;
    vi.Ptag = memory.Ptag;
    MUST(VipCreateVi(nic, &vi, nullptr, nullptr, &server));
    MUST(VipCreateVi(nic, &vi, nullptr, nullptr, &client));
    build(room->in, room->received.data(), handle, room->received.size());
    MUST(VipPostRecv(server, &room->in, handle));

    Address here(attributes, "cxx " + std::to_string(reinterpret_cast<std::uintptr_t>(room.get())));
    std::thread waits([&] {
        VIP_CONN_HANDLE request = nullptr;
        VIP_VI_ATTRIBUTES theirs{};
        Address from;
        MUST(VipConnectWait(nic, here.get(), 20000, from.get(), &theirs, &request));
        MUST(VipConnectAccept(request, server));
    });
    VIP_RETURN code;
    while ((code = VipConnectRequest(client, here.get(), here.get(), 20000, &remote)) == VIP_NO_MATCH)
        std::this_thread::yield();
    must(code, "VipConnectRequest");
    waits.join();

    const std::string text = "a message from C++";
    std::memcpy(room->sent.data(), text.data(), text.size());
    build(room->out, room->sent.data(), handle, text.size());
    MUST(VipPostSend(client, &room->out, handle));
    MUST(VipSendWait(client, 20000, &done));
    MUST(VipRecvWait(server, VIP_INFINITE, &done));
    if (done != &room->in || std::string(room->received.data(), room->in.CS.Length) != text) {
        std::printf("FAIL cxx.cpp: the message came out wrong\n");
        return 1;
    }
    MUST(VipDisconnect(client));
    MUST(VipDisconnect(server));
    MUST(VipDestroyVi(client));
    MUST(VipDestroyVi(server));
    MUST(VipDeregisterMem(nic, room.get(), handle));
    MUST(VipDestroyPtag(nic, memory.Ptag));
    MUST(VipCloseNic(nic));
    std::printf("ok: %s\n", text.c_str());
    return 0;
}
