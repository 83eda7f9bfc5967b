/* message: two processes, one message. Lesson 1. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vipl.h>
#include <vipl_ext.h>

/* Makes a call that must succeed. Otherwise the program ends and says what the code means. */
#define MUST(call) must((call), #call)

static void must(VIP_RETURN result, const char *call)
{
    if (result == VIP_SUCCESS)
        return;
    fprintf(stderr, "%s:\n    %s\n", call, vipl_strerror((int)result));
    exit(1);
}

/* A descriptor and its buffer. Descriptors begin at multiples of 64 bytes. */
static struct {
    VIP_DESCRIPTOR d;
    char text[64];
} m __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));

/* An address: two lengths, the address of the host, a name of our choice. VIP_NET_ADDRESS has room
 * for the first byte only, as sockaddr has for no address of IPv6. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char bytes[4 + 32 + 64];
} address;

static address address_of(VIP_NIC_HANDLE nic, const char *name)
{
    VIP_NIC_ATTRIBUTES about;
    address result;

    MUST(VipQueryNic(nic, &about));
    memset(&result, 0, sizeof result);
    result.net.HostAddressLen = about.NicAddressLen;
    result.net.DiscriminatorLen = (VIP_UINT16)strlen(name);
    memcpy(result.bytes + 4, about.LocalNicAddress, about.NicAddressLen);
    memcpy(result.bytes + 4 + about.NicAddressLen, name, strlen(name));
    return result;
}

/* Makes the descriptor describe the first bytes of the text. */
static void describe(VIP_MEM_HANDLE memory, size_t bytes)
{
    memset(&m.d, 0, sizeof m.d);
    m.d.CS.Control = VIP_CONTROL_OP_SENDRECV;
    m.d.CS.SegCount = 1;
    m.d.CS.Length = (VIP_UINT32)bytes;
    m.d.DS[0].Local.Data.Address = m.text;
    m.d.DS[0].Local.Handle = memory;
    m.d.DS[0].Local.Length = (VIP_UINT32)bytes;
}

static void serve(VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    address here = address_of(nic, "message"), client;
    VIP_VI_ATTRIBUTES its_vi;
    VIP_CONN_HANDLE request;
    VIP_DESCRIPTOR *done;

    describe(memory, sizeof m.text);
    MUST(VipPostRecv(vi, &m.d, memory)); /* before the client can send */
    MUST(VipConnectWait(nic, &here.net, VIP_INFINITE, &client.net, &its_vi, &request));
    MUST(VipConnectAccept(request, vi));
    MUST(VipRecvWait(vi, VIP_INFINITE, &done));
    printf("%u bytes: %s\n", (unsigned)done->CS.Length, m.text);
}

static void call(VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_MEM_HANDLE memory)
{
    address server = address_of(nic, "message"); /* it is on this host */
    VIP_VI_ATTRIBUTES its_vi;
    VIP_DESCRIPTOR *done;

    MUST(VipConnectRequest(vi, &server.net, &server.net, 5000, &its_vi));
    strcpy(m.text, "no kernel was asked");
    describe(memory, strlen(m.text) + 1);
    MUST(VipPostSend(vi, &m.d, memory));
    MUST(VipSendWait(vi, VIP_INFINITE, &done));
}

int main(void)
{
    /* Two processes, before the first call: each opens the NIC for itself. */
    int is_server = fork() != 0;
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_MEM_HANDLE memory;
    VIP_VI_HANDLE vi;

    MUST(VipOpenNic("via_lo", &nic));
    MUST(VipCreatePtag(nic, &tag));
    VIP_MEM_ATTRIBUTES rights = {.Ptag = tag};
    MUST(VipRegisterMem(nic, &m, sizeof m, &rights, &memory));
    VIP_VI_ATTRIBUTES wanted = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
        .MaxTransferSize = 4096,
        .Ptag = tag,
    };
    MUST(VipCreateVi(nic, &wanted, NULL, NULL, &vi));

    if (is_server)
        serve(nic, vi, memory);
    else
        call(nic, vi, memory);

    MUST(VipDisconnect(vi));
    MUST(VipDestroyVi(vi));
    MUST(VipDeregisterMem(nic, &m, memory));
    MUST(VipDestroyPtag(nic, tag));
    MUST(VipCloseNic(nic));
    if (is_server)
        wait(NULL);
    return 0;
}
