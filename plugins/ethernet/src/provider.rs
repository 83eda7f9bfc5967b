//! From a card to a plug-in: the SDK's provider.

use std::ffi::CStr;
use std::marker::PhantomData;

use vipl_plugin_sdk::abi::vipl_nic_info;
use vipl_plugin_sdk::settings::Setting;
use vipl_plugin_sdk::{NicHandle, Provider, Status};

use crate::card::Card;
use crate::nic::EthernetNic;

/// The provider for a card.
pub struct Ethernet<C>(PhantomData<C>);

impl<C: Card> Provider for Ethernet<C> {
    const NAME: &'static CStr = C::NAME;
    const VERSION: &'static CStr = c"0.1.0";
    const SETTINGS: &'static [Setting] = C::SETTINGS;
    type Nic = EthernetNic;

    fn claim(name: &str) -> Option<(i32, String)> {
        C::claim(name)
    }

    fn devices() -> Vec<String> {
        C::devices()
    }

    fn open(
        argument: &str,
        nic: NicHandle,
        info: &mut vipl_nic_info,
    ) -> Result<EthernetNic, Status> {
        EthernetNic::open::<C>(C::network(argument)?, nic, info)
    }
}
