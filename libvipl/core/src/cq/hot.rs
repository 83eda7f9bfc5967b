//! The VIs that a poll of a CQ checks directly, and whether others are active.

/// Number of VIs that a poll checks directly.
const HOT: usize = 2;

/// Consecutive completions of hot VIs after which the others are considered idle.
const OTHERS_MAX: u32 = 256;

/// The VIs that completed a receive most recently, the latest first. `V` identifies a VI.
pub(super) struct Hot<V: 'static> {
    vis: [Option<&'static V>; HOT],
    /// Nonzero while others are active.
    others: u32,
}

// Not derived: copying a reference does not need `V: Clone`.
impl<V> Clone for Hot<V> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Hot<V> {}

impl<V> Hot<V> {
    pub(super) fn new() -> Self {
        Hot {
            vis: [None; HOT],
            others: 0,
        }
    }

    /// Forgets all hot VIs.
    pub(super) fn clear(&mut self) {
        *self = Hot::new();
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.vis[0].is_none()
    }

    /// Whether VIs that are not hot have recently completed receives.
    #[inline(always)]
    pub(super) fn others_are_active(&self) -> bool {
        self.others != 0
    }

    #[inline(always)]
    pub(super) fn vis(&self) -> impl Iterator<Item = &'static V> + use<V> {
        self.vis.into_iter().flatten()
    }

    /// Records that a VI has completed a receive.
    #[inline(always)]
    pub(super) fn remember(&mut self, vi: &'static V) {
        let place = self.vis().position(|hot| std::ptr::eq(hot, vi));
        self.others = match place {
            Some(_) => self.others.saturating_sub(1),
            None => OTHERS_MAX,
        };
        if place != Some(0) {
            let last = place.unwrap_or(HOT - 1);
            self.vis[..=last].rotate_right(1);
            self.vis[0] = Some(vi);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static VIS: [u32; 3] = [0, 1, 2];

    fn hot(after: &[usize]) -> (Vec<u32>, bool) {
        let mut hot = Hot::new();
        assert!(hot.is_empty());
        after.iter().for_each(|vi| hot.remember(&VIS[*vi]));
        (hot.vis().copied().collect(), hot.others_are_active())
    }

    #[test]
    fn the_latest_vis_are_hot() {
        assert_eq!(hot(&[0]).0, [0]);
        assert_eq!(hot(&[0, 1]).0, [1, 0]);
        assert_eq!(hot(&[0, 1, 0]).0, [0, 1]);
        assert_eq!(hot(&[0, 1, 2, 2]).0, [2, 1]);
    }

    #[test]
    fn others_are_active_until_hot_ones_complete_all() {
        let mut order = vec![0, 1, 2];
        assert!(hot(&order).1);
        order.extend([1, 2].repeat(OTHERS_MAX as usize / 2));
        assert!(!hot(&order).1);
        order.push(0);
        assert!(hot(&order).1);
        let mut cleared = Hot::new();
        cleared.remember(&VIS[0]);
        cleared.clear();
        assert!(cleared.is_empty() && !cleared.others_are_active());
    }
}
