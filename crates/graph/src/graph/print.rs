//! A graph as text.

use std::fmt;

use crate::{DeltaWeights, Graph, ImageOrder, Op, ScanWeights, WeightId};

/// One line per node: `%3 [1536] = linear %2, blk.0.attn_q.weight [1536, 512]`.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, t) in self.ropes.iter().enumerate() {
            let (first, last) = (t.freqs.first().unwrap_or(&0.0), t.freqs.last().unwrap_or(&0.0));
            let (pairs, magnitude) = (t.freqs.len(), t.magnitude);
            write!(f, "rope {i}: {pairs} pairs, {first:.4e} .. {last:.4e}, x {magnitude:.4}")?;
            if !t.parts.is_empty() {
                let of = |part: u8| t.parts.iter().filter(|p| **p == part).count();
                write!(f, ", parts of {} {} {}", of(0), of(1), of(2))?;
            }
            writeln!(f)?;
        }
        let weight = |id: WeightId| {
            let w = self.weight(id);
            if w.rows == 1 { format!("{} [{}]", w.name, w.cols) } else { format!("{} {}", w.name, w.shape()) }
        };
        for (i, node) in self.nodes.iter().enumerate() {
            let rows = if node.value.outputs_only { "outputs, " } else { "" };
            write!(f, "%{i} [{rows}{}] = {}", node.value.width, node.op.name())?;
            for v in node.op.inputs() {
                write!(f, " %{}", v.index())?;
            }
            match &node.op {
                Op::Embed { table, scale } => {
                    write!(f, " {}", weight(*table))?;
                    if *scale != 1.0 {
                        write!(f, " x {scale:.4}")?;
                    }
                }
                Op::Norm { len, weight: w, bias, eps, kind, .. } => {
                    w.map_or(Ok(()), |w| write!(f, " {}", weight(w)))?;
                    if w.is_none() {
                        write!(f, " of {len}")?;
                    }
                    write!(f, " {kind:?} eps {eps:e}")?;
                    bias.map_or(Ok(()), |b| write!(f, " + {}", weight(b)))?;
                }
                Op::Linear { weight: w, scale, bias, .. } => {
                    write!(f, " {}", weight(*w))?;
                    scale.map_or(Ok(()), |s| write!(f, " x {}", weight(s)))?;
                    bias.map_or(Ok(()), |b| write!(f, " + {}", weight(b)))?;
                }
                Op::ExpertLinear { weight: w, scale, bias, .. } => {
                    write!(f, " {}", weight(*w))?;
                    scale.map_or(Ok(()), |s| write!(f, " x {}", weight(s)))?;
                    bias.map_or(Ok(()), |b| write!(f, " + {}", weight(b)))?;
                }
                Op::Route { bias, args: a, .. } => {
                    write!(f, " {} {:?}", a.used, a.gating)?;
                    bias.map_or(Ok(()), |b| write!(f, " by {}", weight(b)))?;
                    a.groups.map_or(Ok(()), |g| write!(f, " from {} of {} groups", g.used, g.count))?;
                    write!(f, "{} x {:.4}", if a.renormalise { " renormalised" } else { "" }, a.scale)?;
                }
                Op::Rope { head_dim, style, table, .. } => {
                    write!(f, " head {head_dim} {style:?} table {table}")?;
                }
                Op::Attend { kv, layer, args: a, sinks, .. } => {
                    let reads = if kv.is_none() { " to" } else { "" };
                    write!(f, "{reads} layer {layer} heads {}/{} x {}", a.heads, a.kv_heads, a.head_dim)?;
                    write!(f, " scale {:.4}", a.scale)?;
                    if !a.causal {
                        write!(f, " not causal")?;
                    }
                    match a.images {
                        ImageOrder::Sequence => {}
                        ImageOrder::Whole => write!(f, " whole images")?,
                        ImageOrder::Alone => write!(f, " images alone")?,
                    }
                    a.window.map_or(Ok(()), |w| write!(f, " window {w}"))?;
                    a.alibi.map_or(Ok(()), |a| write!(f, " alibi {a}"))?;
                    a.softcap.map_or(Ok(()), |c| write!(f, " softcap {c}"))?;
                    a.temperature
                        .map_or(Ok(()), |t| write!(f, " temperature {} per {}", t.scale, t.length))?;
                    sinks.map_or(Ok(()), |s| write!(f, " sinks {}", weight(s)))?;
                }
                Op::AddRow { table, row, .. } => write!(f, " {} {row:?}", weight(*table))?,
                Op::Apply { function, .. } => write!(f, " {function:?}")?,
                Op::Gated { act, .. } => write!(f, " {act:?}")?,
                Op::Scale { by, .. } => write!(f, " x {by:.4}")?,
                Op::ScaleColumns { by, .. } => write!(f, " x {}", weight(*by))?,
                Op::SoftCap { cap, .. } => write!(f, " {cap}")?,
                Op::ScaleAdapters { rank, .. } => write!(f, " rank {rank}")?,
                Op::HeadColumns { every, start, len, .. } => {
                    write!(f, " {start}..{} of each {every}", start + len)?;
                }
                Op::JoinHeads { heads, .. } => write!(f, " heads {heads}")?,
                Op::Columns { start, len, .. } => write!(f, " {start}..{}", start + len)?,
                Op::Input { index } => write!(f, " {index}")?,
                Op::ImageRows { start, adds, .. } => {
                    write!(f, " from column {start}{}", if *adds { " added" } else { "" })?;
                }
                Op::HostExperts { piece, .. } => write!(f, " piece {piece}")?,
                Op::Conv { weight: w, bias, layer, silu, .. } => {
                    write!(f, " {}", weight(*w))?;
                    match layer {
                        Some(layer) => write!(f, " state {layer}")?,
                        None => write!(f, " centred")?,
                    }
                    write!(f, "{}", if *silu { " silu" } else { "" })?;
                    bias.map_or(Ok(()), |b| write!(f, " + {}", weight(b)))?;
                }
                Op::Delta { weights: DeltaWeights { rate, bias }, layer, args: a, .. } => {
                    write!(f, " {} + {} state {layer}", weight(*rate), weight(*bias))?;
                    write!(f, " heads {}/{}", a.v_heads, a.k_heads)?;
                    write!(f, " {:?} x {}/{} eps {:e}", a.key_heads, a.v_dim, a.k_dim, a.eps)?;
                }
                Op::Scan { weights: ScanWeights { rate, bias, skip }, layer, args: a, .. } => {
                    write!(f, " {} + {}", weight(*rate), weight(*bias))?;
                    write!(f, " skip {} state {layer}", weight(*skip))?;
                    write!(f, " heads {} x {} groups {} x {}", a.heads, a.head_dim, a.groups, a.state_dim)?;
                }
                Op::Rotate { rotation, inverse, .. } => {
                    let r = &self.rotations[*rotation];
                    write!(f, "{} blocks {}", if *inverse { " back" } else { "" }, r.block)?;
                    r.heads.map_or(Ok(()), |h| write!(f, " heads {} x {}", h.outer, h.inner))?;
                }
                Op::GateRows { .. }
                | Op::Add { .. }
                | Op::Mix { .. }
                | Op::Outputs { .. }
                | Op::Means { .. } => {}
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
