//! Another flow through the same queue: a TCP that always has data to send, with the window of CUBIC (RFC 9438)
//! except for Reno's window above the last top, which grows as in Linux. It detects a loss a round trip later, and
//! retransmits as if the data were new.

/// Bytes of a packet.
pub const PACKET: usize = 1500;

#[derive(Debug)]
pub struct Rival {
    window: f64,
    threshold: f64,
    top: f64,
    reno: f64,
    since: Option<u64>,
    shrunk: u64,
    pub in_flight: u32,
    pub delivered: u64,
    pub lost: u64,
}

impl Default for Rival {
    fn default() -> Rival {
        Rival {
            window: 10.0,
            threshold: f64::INFINITY,
            top: 0.0,
            reno: 0.0,
            since: None,
            shrunk: 0,
            in_flight: 0,
            delivered: 0,
            lost: 0,
        }
    }
}

impl Rival {
    pub fn may_send(&self) -> bool {
        f64::from(self.in_flight) < self.window
    }

    /// Fate of a packet that was sent at this time.
    pub fn informed(&mut self, now: u64, sent: u64, arrived: bool, marked: bool) {
        self.in_flight -= 1;
        if !arrived || marked {
            self.lost += u64::from(!arrived);
            if sent >= self.shrunk {
                self.top = self.window * if self.window < self.top { 0.85 } else { 1.0 };
                self.window = (0.7 * self.window).max(2.0);
                (self.threshold, self.since, self.shrunk) = (self.window, None, now);
            }
        }
        if !arrived {
            return;
        }
        self.delivered += PACKET as u64;
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let (since, rtt) = (*self.since.get_or_insert(now), (now - sent) as f64 / 1e9);
        if since == now {
            (self.top, self.reno) = (self.top.max(self.window), self.window);
        }
        let ascent = ((self.top - 0.7 * self.top) / 0.4).cbrt();
        let time = (now - since) as f64 / 1e9 + rtt;
        let wanted = self.top + 0.4 * (time - ascent).powi(3);
        let wanted = wanted.clamp(self.window, 1.5 * self.window);
        self.window += (wanted - self.window) / self.window;
        self.reno += 0.53 / self.window;
        self.window = self.window.max(self.reno);
    }
}
