//! What became of an assertion, or of a row of the error table.

/// What became of one assertion on one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every run that has to show it, and can, has shown it.
    Passed,
    /// Names of the runs that have not.
    Failed(Vec<String>),
    /// No run can show it here; the reason.
    Skipped(String),
}
