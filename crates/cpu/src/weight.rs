//! A stored tensor.

use std::sync::Arc;

use tern_graph::HostTensor;

use crate::dot::{LinearKernel, Packed};

/// A tensor with the kernel of its products, and its panels if it was packed when it was stored.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) tensor: HostTensor,
    pub(crate) kernel: Option<LinearKernel>,
    pub(crate) packed: Option<Arc<Packed>>,
}
