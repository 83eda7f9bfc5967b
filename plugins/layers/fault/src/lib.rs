//! The layer `fault`: makes calls fail, late or break their connection, by rules (`rule`).

use std::ffi::CStr;

use vipl_abi::VIP_RETURN;
use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, VIPL_LOG_INFO};
use vipl_plugin_sdk::layer::{Call, Host, Layer, Local};
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_sys::clock;

mod rule;

use rule::{Rules, What};

/// The layer.
pub struct Fault {
    host: Host,
    rules: Rules,
}

impl Layer for Fault {
    const NAME: &'static CStr = c"fault";
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = &[settings::text(
        c"fault",
        c"rules",
        c"calls that fail: VipPostSend:VIP_ERROR_RESOURCE:every=100;seed=7",
    )];

    fn new(host: Host) -> Result<Fault, Status> {
        let text = host.value(Self::NAME, c"fault").unwrap_or_default();
        let rules = Rules::parse(&text).map_err(|error| {
            host.log(
                VIPL_LOG_ERROR,
                &format!("fault: no call will fail: the rule {error}"),
            );
            Status::Invalid
        })?;
        Ok(Fault { host, rules })
    }

    fn before(&self, call: &Call<'_>, _local: &mut Local) -> Option<VIP_RETURN> {
        let (rule, number) = self.rules.applies(call.function())?;
        let name = call.name().to_string_lossy();
        let text = format!("fault: call {number} of {name} by the rule {}", rule.text);
        self.host.log(VIPL_LOG_INFO, &text);
        match rule.what {
            What::Answer(code) => return Some(code),
            What::Delay(delay) => clock::sleep(delay),
            What::Break(code) => {
                self.host.fail(call.argument(0), code as i32);
            }
        }
        None
    }
}

vipl_plugin_sdk::layer!(Fault);
