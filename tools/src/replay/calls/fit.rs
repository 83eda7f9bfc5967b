//! Whether another device can have the VIs of then.

use vipl_client::raw::abi::*;
use vipl_rules::words::levels;

use super::super::file::Call;
use super::super::process::{Nic, Process};
use super::{Outcome, Stage, made};

/// What comes of the attributes of a VI or region.
pub(super) enum Fit {
    Yes,
    /// They were changed in a way that this run does not notice.
    Changed(String),
    /// The device cannot do what the run does.
    Not(String),
}

impl Fit {
    /// The outcome of a call with them.
    pub(super) fn outcome(self, code: i32) -> Outcome {
        match self {
            Fit::Changed(note) => Outcome::Changed(code, note),
            _ => made(code),
        }
    }
}

const NO_READS: &str = "no EnableRdmaRead, which this device has not, and no call of the run reads";

/// Makes attributes of a region fit to the device, which may have no RDMA Read.
pub(super) fn region(
    stage: &Stage<'_>,
    call: &Call,
    nic: &Nic,
    attributes: Option<&mut VIP_MEM_ATTRIBUTES>,
) -> Fit {
    let has_none =
        call.result == "VIP_SUCCESS" && nic.transfer_max != 0 && nic.levels_of_reads == 0;
    match attributes.filter(|attributes| has_none && attributes.EnableRdmaRead != 0) {
        None => Fit::Yes,
        Some(_) if stage.reads => Fit::Not("RDMA Read".to_owned()),
        Some(attributes) => {
            attributes.EnableRdmaRead = 0;
            Fit::Changed(format!("regions have {NO_READS}"))
        }
    }
}

/// Makes attributes of a VI fit to the device, which may have a smaller MaxTransferSize than that of then, or no RDMA Read.
pub(super) fn vi(
    stage: &Stage<'_>,
    process: &Process,
    call: &Call,
    nic: &Nic,
    attributes: Option<&mut VIP_VI_ATTRIBUTES>,
) -> Fit {
    // Zeros: it is not known.
    let Some(attributes) =
        attributes.filter(|_| call.result == "VIP_SUCCESS" && nic.transfer_max != 0)
    else {
        return Fit::Yes;
    };
    let level = attributes.ReliabilityLevel;
    if level & nic.levels == 0 {
        return Fit::Not(format!("the level {}", levels(level)));
    }
    let mut notes = Vec::new();
    if attributes.EnableRdmaRead != 0 && level & nic.levels_of_reads == 0 {
        if stage.reads {
            return Fit::Not(format!("RDMA Read on the level {}", levels(level)));
        }
        attributes.EnableRdmaRead = 0;
        notes.push(NO_READS.to_owned());
    }
    let (then, most, longest) = (
        attributes.MaxTransferSize as u64,
        nic.transfer_max,
        process.longest_send,
    );
    if then > most {
        if longest > most {
            return Fit::Not(format!(
                "messages of {longest} bytes, but of {most} at most"
            ));
        }
        attributes.MaxTransferSize = most as VIP_ULONG;
        notes.push(format!(
            "a MaxTransferSize of {most} bytes instead of {then}"
        ));
    }
    match notes.is_empty() {
        true => Fit::Yes,
        false => Fit::Changed(format!("VIs have {}", notes.join(", and "))),
    }
}
