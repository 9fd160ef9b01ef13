//! Mamba-2: a convolution over values, inputs and outputs of the state, a scan, and a norm of the gated
//! result; and models of such layers alone.

use tern_graph::{Activation, ScanWeights, SelectiveScan, Val};

use crate::{Arch, Build, ModelError, Number, Synthetic};

pub(crate) static MAMBA2: Arch = Arch {
    name: "mamba2",
    build,
    synthetic: Synthetic {
        extends: Some(&TINY_LAYERS),
        keys: &[
            ("attention.head_count", Number::Integer(0)),
            ("attention.head_count_kv", Number::Integer(0)),
            ("feed_forward_length", Number::Integer(0)),
        ],
        ..Synthetic::PLAIN
    },
};

/// The layers of tiny shapes, with decays that leave some memory.
pub(crate) static TINY_LAYERS: Synthetic = Synthetic {
    tensors: &["ffn_gate.weight", "ssm_conv1d.bias", "ssm_norm.weight"],
    keys: &[
        ("ssm.conv_kernel", Number::Integer(4)),
        ("ssm.inner_size", Number::Integer(512)),
        ("ssm.state_size", Number::Integer(32)),
        ("ssm.time_step_rank", Number::Integer(8)),
        ("ssm.group_count", Number::Integer(2)),
    ],
    means: &[("ssm_a", -0.3)],
    ..Synthetic::PLAIN
};

/// The sizes of Mamba-2 layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mamba {
    /// Taps of the convolution.
    taps: usize,
    /// Heads.
    scan: SelectiveScan,
}

/// As large as any model's, with room.
const MAX_SIZE: usize = 1 << 20;

fn build(b: &mut Build<'_>) -> Result<(), ModelError> {
    let mamba = b.mamba()?;
    let mut x = b.embed(1.0)?;
    for layer in 0..b.config.layers {
        let normed = b.norm(x, &format!("blk.{layer}.attn_norm"), b.config.width)?;
        let y = b.mamba_layer(normed, layer, &mamba)?;
        x = b.graph.add(x, y)?;
    }
    b.head(x)?;
    Ok(())
}

impl Build<'_> {
    /// The sizes that metadata gives.
    pub(crate) fn mamba(&self) -> Result<Mamba, ModelError> {
        let keys = self.keys();
        let size = |name: &str| {
            let size = keys.usize(name)?;
            if size == 0 || size > MAX_SIZE {
                return Err(ModelError::value(keys.key(name), size, format!("1 to {MAX_SIZE}")));
            }
            Ok(size)
        };
        let (inner, heads) = (size("ssm.inner_size")?, size("ssm.time_step_rank")?);
        let groups = size("ssm.group_count")?;
        if !inner.is_multiple_of(heads) || !inner.is_multiple_of(groups) {
            let want = format!("a multiple of {heads} heads and {groups} groups");
            return Err(ModelError::value(keys.key("ssm.inner_size"), inner, want));
        }
        let scan =
            SelectiveScan { heads, head_dim: inner / heads, groups, state_dim: size("ssm.state_size")? };
        Ok(Mamba { taps: size("ssm.conv_kernel")?, scan })
    }

    /// The layer on a normalised value. `[tokens, width]`
    pub(crate) fn mamba_layer(&mut self, x: Val, layer: usize, mamba: &Mamba) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let Mamba { taps, scan } = *mamba;
        let (inner, width, heads) = (scan.heads * scan.head_dim, scan.width(), scan.heads);
        let all = self.linear(x, &name("ssm_in"), inner + width + heads)?; // [gate, x B C, time steps]
        let z = self.graph.columns(all, 0, inner)?;
        let xbc = self.graph.columns(all, inner, width)?;
        let dt = self.graph.columns(all, inner + width, heads)?;
        let conv = self.graph.matrix(name("ssm_conv1d.weight"), width, taps)?;
        let bias = self.optional_vector(name("ssm_conv1d.bias"), width)?;
        let xbc = self.graph.conv(xbc, conv, bias, true)?;
        let weights = ScanWeights {
            rate: self.graph.matrix(name("ssm_a"), heads, 1)?,
            bias: self.graph.vector(name("ssm_dt.bias"), heads)?,
            skip: self.graph.matrix(name("ssm_d"), heads, 1)?,
        };
        let y = self.graph.scan(xbc, dt, weights, scan)?;
        let mut y = self.graph.gated(z, y, Activation::Silu)?;
        if self.has(&name("ssm_norm.weight")) {
            let weight = self.graph.matrix(name("ssm_norm.weight"), scan.groups, inner / scan.groups)?;
            y = self.graph.norm(y, weight, self.config.eps)?;
        }
        self.linear(y, &name("ssm_out"), self.config.width)
    }
}
