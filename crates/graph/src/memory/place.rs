//! Parts of the KV cache and of the state that are copied whole, to be kept elsewhere.

/// What is copied whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CachePart {
    /// A page of all layers that keep all tokens.
    Page,
    /// A page of all layers with a window, if they have their own.
    WindowPage,
    /// The state of all recurrent layers.
    StateSlot,
}

impl CachePart {
    /// All of them.
    pub const ALL: [CachePart; 3] = [CachePart::Page, CachePart::WindowPage, CachePart::StateSlot];
}

/// A page or a state slot by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// What it is.
    pub part: CachePart,
    /// Which one.
    pub number: u32,
}
