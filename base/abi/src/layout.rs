//! Every size and offset of the public structures, for both ABIs (spec §2.2 to §2.7).

use core::mem::{offset_of, size_of};

use crate::types::*;

/// Selects the 64-bit or the 32-bit value.
const fn by_abi(lp64: usize, ilp32: usize) -> usize {
    if size_of::<usize>() == 8 { lp64 } else { ilp32 }
}

macro_rules! layout {
    ($type:ty, $lp64:literal / $ilp32:literal $(, $field:ident $o64:literal / $o32:literal)* $(,)?) => {
        const _: () = assert!(size_of::<$type>() == by_abi($lp64, $ilp32));
        $(const _: () = assert!(offset_of!($type, $field) == by_abi($o64, $o32));)*
    };
}

layout!(VIP_PVOID64, 8 / 8);
layout!(VIP_NET_ADDRESS, 6 / 6, HostAddressLen 0 / 0, DiscriminatorLen 2 / 2, HostAddress 4 / 4);
layout!(
    VIP_NIC_ATTRIBUTES, 200 / 136,
    Name 0 / 0, HardwareVersion 64 / 64, ProviderVersion 72 / 68, NicAddressLen 80 / 72,
    LocalNicAddress 88 / 76, ThreadSafe 96 / 80, MaxDiscriminatorLen 100 / 84,
    MaxRegisterBytes 104 / 88, MaxRegisterRegions 112 / 92, MaxRegisterBlockBytes 120 / 96,
    MaxVI 128 / 100, MaxDescriptorsPerQueue 136 / 104, MaxSegmentsPerDesc 144 / 108,
    MaxCQ 152 / 112, MaxCQEntries 160 / 116, MaxTransferSize 168 / 120, NativeMTU 176 / 124,
    MaxPtags 184 / 128, ReliabilityLevelSupport 192 / 132, RDMAReadSupport 194 / 134,
);
layout!(
    VIP_VI_ATTRIBUTES, 40 / 24,
    ReliabilityLevel 0 / 0, MaxTransferSize 8 / 4, QoS 16 / 8, Ptag 24 / 12,
    EnableRdmaWrite 32 / 16, EnableRdmaRead 36 / 20,
);
layout!(VIP_MEM_ATTRIBUTES, 16 / 12, Ptag 0 / 0, EnableRdmaWrite 8 / 4, EnableRdmaRead 12 / 8);
layout!(
    VIP_ERROR_DESCRIPTOR, 48 / 28,
    NicHandle 0 / 0, ViHandle 8 / 4, CQHandle 16 / 8, DescriptorPtr 24 / 12, OpCode 32 / 16,
    ResourceCode 40 / 20, ErrorCode 44 / 24,
);
layout!(VIP_AUTODISCOVERY_LIST, 24 / 12, NumberOfHops 0 / 0, ADAddrArray 8 / 4, NumAdAddrs 16 / 8);
layout!(
    VIP_CONTROL_SEGMENT, 32 / 32,
    Next 0 / 0, NextHandle 8 / 8, SegCount 12 / 12, Control 14 / 14, Reserved 16 / 16,
    ImmediateData 20 / 20, Length 24 / 24, Status 28 / 28,
);
layout!(VIP_ADDRESS_SEGMENT, 16 / 16, Data 0 / 0, Handle 8 / 8, Reserved 12 / 12);
layout!(VIP_DATA_SEGMENT, 16 / 16, Data 0 / 0, Handle 8 / 8, Length 12 / 12);
layout!(VIP_DESCRIPTOR_SEGMENT, 16 / 16);
#[cfg(not(feature = "clan-dialect"))]
layout!(VIP_DESCRIPTOR, 64 / 64, CS 0 / 0, DS 32 / 32);
#[cfg(feature = "clan-dialect")]
layout!(VIP_DESCRIPTOR, 48 / 48, Control 0 / 0, Data 32 / 32);
