//! The layer `fault`: makes calls fail, late or break their connection, by rules (`rule`).

use std::ffi::CStr;

use vipl_abi::VIP_RETURN;
use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, VIPL_LOG_INFO, VIPL_LOG_WARN};
use vipl_plugin_sdk::layer::{Call, Host, Layer, Local};
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_sys::clock;

mod rule;

use rule::{Hit, Rules, What};

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
        let Hit {
            rule,
            call: number,
            is_first,
        } = self.rules.applies(call.function())?;
        let say = |what: &str| {
            let name = call.name().to_string_lossy();
            let text = format!(
                "fault: call {number} of {name} {what}, by the rule {}",
                rule.text
            );
            // Many follow of some rules. The first one says why the program behaves as it does.
            let level = match is_first {
                true => VIPL_LOG_WARN,
                false => VIPL_LOG_INFO,
            };
            self.host.log(level, &text);
        };
        match rule.what {
            What::Answer(code) => {
                say(&format!("is answered with {code:?}"));
                return Some(code);
            }
            What::Delay(delay) => {
                say(&format!("begins {delay:?} late"));
                clock::sleep(delay);
            }
            What::Break(code) => {
                // Before it: the error of the connection is logged, too.
                say(&format!("breaks the connection with {code:?}"));
                if !self.host.fail(call.argument(0), code as i32) {
                    say("breaks nothing, since its VI is not connected");
                }
            }
        }
        None
    }
}

vipl_plugin_sdk::layer!(Fault);
