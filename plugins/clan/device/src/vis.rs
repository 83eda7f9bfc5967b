//! The VIs of the device.

use crate::vi::Vi;

/// VIs by a number that stays.
#[derive(Default)]
pub(crate) struct Vis {
    list: Vec<Option<Vi>>,
    free: Vec<usize>,
}

impl Vis {
    pub(crate) fn add(&mut self, vi: Vi) -> usize {
        if let Some(id) = self.free.pop() {
            self.list[id] = Some(vi);
            return id;
        }
        self.list.push(Some(vi));
        self.list.len() - 1
    }

    pub(crate) fn remove(&mut self, id: usize) {
        if self.list[id].take().is_some() {
            self.free.push(id);
        }
    }

    pub(crate) fn get(&self, id: usize) -> Option<&Vi> {
        self.list.get(id)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: usize) -> Option<&mut Vi> {
        self.list.get_mut(id)?.as_mut()
    }

    /// Two of them at once.
    pub(crate) fn pair(&mut self, one: usize, other: usize) -> Option<(&mut Vi, &mut Vi)> {
        let [one, other] = self.list.get_disjoint_mut([one, other]).ok()?;
        Some((one.as_mut()?, other.as_mut()?))
    }

    /// Numbers are below this.
    pub(crate) fn places(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Vi> {
        self.list.iter().flatten()
    }
}
