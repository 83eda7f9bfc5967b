//! `cq-random`: messages back and forth on a random one of many connected VIs, whose receives all complete on
//! one completion queue.
//!
//! The server answers on the VI on which a message arrived: the 32 bits that come with it are that VI's
//! number. One and the same program is measured with 1, 10, 100 and the VIs that were asked for.

use serde_json::json;
use vipl_tools::blocks::Blocks;
use vipl_tools::cq::Cq;
use vipl_tools::endpoint::ViSpec;
use vipl_tools::{Error, Result};

use crate::bench::{Bench, Figure, Params, figure};
use crate::machine::Session;
use crate::many::{Many, ask_peer};

/// Round trips of a warm-up beside two on each VI, and a fifth of the least that is measured.
const FEW: u64 = 100;

/// The test; it connects anew for every number of VIs.
pub(crate) struct CqRandom {
    params: Params,
}

impl CqRandom {
    pub(crate) fn open(params: Params) -> Self {
        Self { params }
    }

    /// One way in ns with so many VIs.
    fn measure(&self, session: &mut Session, vis: usize) -> Result<f64> {
        let vi = self.params.vi(session)?;
        let (mut many, cq) = (Many::new(session, vis)?, queue(session, vis)?);
        let first = ask_peer(session, "cq-random", vi, vis)?;
        many.connect(session, vi, vis, first, Some(&cq))?;
        let time = self.params.time / 4;
        let warm = play(&many, &cq, session, (vis, 2 * vis as u64 + FEW))?;
        let turns = self.params.iterations.unwrap_or_else(|| {
            let turns = time.as_nanos() as f64 / (2.0 * warm).max(1.0);
            (turns as u64).clamp(5 * FEW, 1_000_000)
        });
        let one_way = play(&many, &cq, session, (vis, turns))?;
        drop((many, cq));
        session.end()?;
        Ok(one_way)
    }
}

impl Bench for CqRandom {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let one = self.measure(session, 1)?;
        let ten = self.measure(session, 10)?;
        let hundred = self.measure(session, 100)?;
        let many = self.measure(session, self.params.vis)?;
        Ok(vec![
            figure("many ÷ one VI", many / one, ""),
            figure("1 VI", one / 1e3, "µs"),
            figure("10 VIs", ten / 1e3, "µs"),
            figure("100 VIs", hundred / 1e3, "µs"),
            figure("many VIs", many / 1e3, "µs"),
        ])
    }
}

fn queue(session: &Session, vis: usize) -> Result<Cq> {
    let most = session.nic.attributes().cq_entries_max;
    Cq::new(&session.nic, (2 * vis as u64 + 64).min(most))
}

/// Plays so many round trips, each on a random one of so many VIs; returns the median one-way time of blocks
/// in ns.
fn play(many: &Many, cq: &Cq, session: &mut Session, (vis, turns): (usize, u64)) -> Result<f64> {
    session.go(turns)?;
    let (mut blocks, mut left) = (Blocks::new(turns), turns);
    let mut random = 12_345u64;
    while left > 0 {
        left -= blocks.take(left, || {
            random = random
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            let index = (random >> 33) as usize % vis;
            many.send(index)?;
            if many.take(cq)? == index {
                return Ok(());
            }
            Err(Error::Corrupt("an answer came on another VI".to_owned()))
        })?;
    }
    Ok(blocks.median() / 2.0)
}

/// The server's side, from the question that opened it to its end.
pub(crate) fn serve(session: &mut Session, vi: ViSpec, vis: usize, first: u32) -> Result<()> {
    let (mut many, cq) = (Many::new(session, vis)?, queue(session, vis)?);
    session.reply(&json!({}))?;
    many.connect(session, vi, vis, first, Some(&cq))?;
    while let Some(turns) = session.next_go()? {
        for _ in 0..turns {
            let index = many.take(&cq)?;
            many.send(index)?;
        }
    }
    drop((many, cq));
    session.ended()
}
