//! What a text finds: objects of processes, with what they belong to and what belongs to them.
//!
//! ```text
//!   process ─┬─ NIC ─┬─ VI
//!            │       └─ CQ
//!            └─ counter
//! ```
//!
//! A text is found anywhere in a word that is shown, in capital letters or small ones; in a number only as all of it.

use std::borrow::Cow;

use serde_json::Value;
use vipl_pages::Snapshot;
use vipl_pages::read::{Cq, Nic};

use crate::find::Seen;
use crate::model::{ADDRESS_IP, Model, NicNow, ProcessNow, ViNow};
use crate::words;

/// A text that is looked for; an empty one finds everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter(String);

impl Filter {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_lowercase())
    }

    /// What is found of a model, with the sums of all that each process has.
    pub(crate) fn of<'a>(&self, model: &'a Model) -> Cow<'a, Model> {
        if self.0.is_empty() {
            return Cow::Borrowed(model);
        }
        let of_list = |list: &Value, names: &[&str]| -> Value {
            let lines = list.as_array().into_iter().flatten();
            let has = |text: &Value| self.is_in(text.as_str().unwrap_or_default());
            let found = lines.filter(|line| names.iter().any(|name| has(&line[name])));
            found.cloned().collect()
        };
        let agent = model.agent.clone().map(|mut agent| {
            agent["budgets"] = of_list(&agent["budgets"], &["name"]);
            agent
        });
        Cow::Owned(Model {
            time: model.time,
            processes: model
                .processes
                .iter()
                .filter_map(|p| self.process(p))
                .collect(),
            unreadable: model.unreadable.clone(),
            agent,
            devices: model
                .devices
                .as_ref()
                .map(|list| of_list(list, &["name", "plugin"])),
        })
    }

    fn process(&self, process: &ProcessNow) -> Option<ProcessNow> {
        let seen = &process.seen;
        let program = words::program(&seen.pages.process.program);
        if self.is(seen.pid) || self.is(seen.user.into()) || self.is_in(program) {
            return Some(process.clone());
        }
        let is_found = |handle| process.nic(handle).is_some_and(|nic| self.nic(nic));
        let vis = process.vis.iter();
        let vis = vis.filter(|vi| is_found(vi.page.nic) || self.vi(vi));
        let vis: Vec<ViNow> = vis.cloned().collect();
        let cqs = seen.pages.cqs.iter();
        let cqs = cqs.filter(|cq| is_found(cq.nic) || self.handle(cq.handle));
        let cqs: Vec<Cq> = cqs.cloned().collect();
        let counters = seen.pages.counters.iter();
        let counters = counters.filter(|(name, value)| *value > 0 && self.is_in(name));
        let counters: Vec<(String, u64)> = counters.cloned().collect();
        let has = |handle: u64| {
            let mut of_vis = vis.iter().map(|vi| vi.page.nic);
            let mut of_cqs = cqs.iter().map(|cq| cq.nic);
            of_vis.any(|nic| nic == handle) || of_cqs.any(|nic| nic == handle)
        };
        let nics = process.nics.iter();
        let nics = nics.filter(|nic| self.nic(&nic.page) || has(nic.page.handle));
        let nics: Vec<NicNow> = nics.cloned().collect();
        let nothing = nics.is_empty() && vis.is_empty() && cqs.is_empty() && counters.is_empty();
        (!nothing).then(|| ProcessNow {
            seen: Seen {
                pages: Snapshot {
                    process: seen.pages.process.clone(),
                    cqs,
                    counters,
                    ..Snapshot::default()
                },
                path: seen.path.clone(),
                ..*seen
            },
            nics,
            vis,
            sums: process.sums.clone(),
            end: process.end,
        })
    }

    fn nic(&self, nic: &Nic) -> bool {
        let address = words::host(&nic.address, nic.address_form == ADDRESS_IP);
        self.handle(nic.handle)
            || [&nic.device, &nic.plugin, &address]
                .iter()
                .any(|text| self.is_in(text))
    }

    fn vi(&self, vi: &ViNow) -> bool {
        let page = &vi.page;
        self.handle(page.handle)
            || self.is_in(&words::state(page.state))
            || self.is_in(words::level(page.level))
            || self.is_in(&words::peer(page, vi.is_ip))
            || self.is_in(&words::point(&page.local_point))
            || self.is_in(&words::point(&page.remote_point))
    }

    fn is_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.0)
    }

    fn is(&self, number: u64) -> bool {
        self.0.parse() == Ok(number)
    }

    /// A handle, as the log shows it.
    fn handle(&self, handle: u64) -> bool {
        self.0 == format!("{handle:#x}")
    }
}

#[cfg(test)]
mod tests {
    use vipl_pages::read::Vi;

    use super::*;
    use crate::model::tests::{model, seen};
    use crate::view::View;

    /// Processes 9 and 10; process 10 has another VI, which is connecting, on another NIC, and a CQ there.
    fn sample() -> Model {
        let mut other = seen(10, 7);
        let pages = &mut other.pages;
        pages.nics.push(Nic {
            handle: 0x100_0001,
            plugin: "sim".to_owned(),
            device: "sim:loss=0.2".to_owned(),
            ..Nic::default()
        });
        pages.vis.push(Vi {
            handle: 0x200_0063,
            nic: 0x100_0001,
            number: 5,
            state: 2,
            level: 4,
            peer_address: vec![2, 0, 0, 0, 0, 9],
            remote_point: b"orders\0".to_vec(),
            ..Vi::default()
        });
        pages.cqs.push(Cq {
            handle: 0x300_0001,
            nic: 0x100_0001,
            ..Cq::default()
        });
        model(&[(1, vec![seen(9, 5), other])])
    }

    /// The first two columns of what is found: processes, VIs, NICs, CQs, counters.
    fn found(model: &Model, text: &str) -> [Vec<String>; 5] {
        let model = Filter::new(text).of(model);
        let views = [
            View::processes,
            View::vis,
            View::nics,
            View::cqs,
            View::counters,
        ];
        views.map(|view| {
            let rows = view(&model).rows;
            let words = rows
                .iter()
                .map(|row| format!("{} {}", row.cells[0].text, row.cells[1].text));
            words.collect()
        })
    }

    #[test]
    fn a_process_is_found_with_all_that_it_has() {
        let model = sample();
        let all = found(&model, "");
        for text in ["10", "SERVER10"] {
            let expected = all.clone().map(|rows| -> Vec<String> {
                rows.into_iter()
                    .filter(|row| row.starts_with("10 "))
                    .collect()
            });
            assert_eq!(found(&model, text), expected, "{text}");
            assert_eq!(expected[1].len(), 2);
        }
        assert_eq!(found(&model, "1000"), all, "the user");
        assert_eq!(
            found(&model, "nothing has this"),
            <[Vec<String>; 5]>::default()
        );
    }

    #[test]
    fn a_vi_is_found_with_its_nic_and_its_process() {
        let model = sample();
        for text in ["connecting", "orders\\x00", "0x2000063", "reception"] {
            let [processes, vis, nics, cqs, counters] = found(&model, text);
            assert_eq!(processes, ["10 server10"], "{text}");
            assert_eq!(vis, ["10 5"], "{text}");
            assert_eq!(nics, ["10 sim:loss=0.2"], "{text}");
            assert!(cqs.is_empty() && counters.is_empty(), "{text}");
        }
        // The row of the process, and that of a NIC, are about all that they have.
        let narrowed = Filter::new("connecting");
        let narrowed = narrowed.of(&model);
        assert_eq!(View::processes(&narrowed).rows[0].cells[4].text, "2");
        let narrowed = Filter::new("process 4712");
        let narrowed = narrowed.of(&model);
        assert_eq!(narrowed.processes.len(), 2, "both are connected with it");
    }

    #[test]
    fn a_nic_is_found_with_its_vis_and_queues() {
        let model = sample();
        for text in ["sim:", "SIM", "0x1000001"] {
            let [processes, vis, nics, cqs, _] = found(&model, text);
            assert_eq!(
                (processes.len(), vis, nics.len()),
                (1, vec!["10 5".to_owned()], 1),
                "{text}"
            );
            assert_eq!(cqs, ["10 sim:loss=0.2"], "{text}");
        }
        let [processes, vis, nics, cqs, _] = found(&model, "0x3000001");
        assert_eq!(
            (processes.len(), vis.len(), nics.len(), cqs.len()),
            (1, 0, 1, 1),
            "a CQ"
        );
        let [processes, vis, nics, _, counters] = found(&model, "ring_copy");
        assert_eq!(
            (processes.len(), vis.len(), nics.len(), counters.len()),
            (2, 0, 0, 2)
        );
    }

    #[test]
    fn budgets_and_devices_are_found_by_name() {
        let mut model = sample();
        model.agent =
            Some(serde_json::json!({"budgets": [{"name": "connections"}, {"name": "NICs"}]}));
        model.devices = Some(serde_json::json!([{"name": "via_lo"}, {"name": "sim:"}]));
        let found = Filter::new("nic");
        let found = found.of(&model);
        assert_eq!(View::budgets(&found).rows.len(), 1);
        assert_eq!(View::devices(&found).rows.len(), 0);
    }
}
