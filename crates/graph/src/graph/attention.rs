//! The methods that add rotary embeddings and attention, which open KV layers or read those of earlier nodes.

use super::{Result, fail};
use crate::op::{Attention, KeysAndValues, Op, RopeStyle, Val, WeightId};
use crate::{Graph, RopeTable, Value};

impl Graph {
    /// Registers a rotary table.
    pub fn rope_table(&mut self, table: RopeTable) -> usize {
        if let Some(i) = self.ropes.iter().position(|t| *t == table) {
            return i;
        }
        self.ropes.push(table);
        self.ropes.len() - 1
    }

    /// See [`Op::Rope`].
    pub fn rope(&mut self, x: Val, head_dim: usize, style: RopeStyle, table: usize) -> Result<Val> {
        self.check_tokens("rope", x)?;
        let RopeTable { freqs, parts, .. } = &self.ropes[table];
        let pairs = freqs.len();
        if !parts.is_empty() && (parts.len() != pairs || parts.iter().any(|part| *part > 2)) {
            return fail(format!("rope: want a part from 0 to 2 for each of {pairs} pairs, got {parts:?}"));
        }
        if head_dim == 0 || !self.width(x).is_multiple_of(head_dim) || pairs * 2 > head_dim {
            return fail(format!(
                "rope of {} dimensions on heads of {head_dim} in a value of {}",
                pairs * 2,
                self.width(x)
            ));
        }
        Ok(self.push(Op::Rope { x, head_dim, style, table }, self.value(x)))
    }

    /// See [`Op::Attend`]. Opens a new KV layer.
    pub fn attend(&mut self, q: Val, k: Val, v: Val, args: Attention) -> Result<Val> {
        self.attend_with(q, k, v, args, None)
    }

    /// See [`Op::Attend`]. Opens a new KV layer.
    pub fn attend_with(
        &mut self,
        q: Val,
        k: Val,
        v: Val,
        args: Attention,
        sinks: Option<WeightId>,
    ) -> Result<Val> {
        self.check_heads("q", q, args.heads * args.head_dim)?;
        self.check_heads("k", k, args.kv_heads * args.head_dim)?;
        self.check_heads("v", v, args.kv_heads * args.v_dim)?;
        self.check_attention(&args)?;
        self.check_vector(sinks, args.heads)?;
        let layer = self.kv_layer_of(&args);
        let value = Value { width: args.heads * args.v_dim, outputs_only: false };
        Ok(self.push(Op::Attend { q, kv: Some(KeysAndValues { k, v }), layer, args, sinks }, value))
    }

    /// A new KV layer. Attentions that are not causal keep nothing for later steps: those of
    /// one shape share a layer.
    fn kv_layer_of(&mut self, args: &Attention) -> usize {
        let kept = args.kv_layer();
        let shared = |layer: usize| {
            let nodes = self.nodes.iter();
            let mut readers = nodes.filter_map(|n| match &n.op {
                Op::Attend { layer: of, args, .. } if *of == layer => Some(args),
                _ => None,
            });
            self.kv[layer] == kept && readers.all(|args| !args.causal)
        };
        if let Some(layer) = (0..self.kv.len()).find(|layer| !args.causal && shared(*layer)) {
            return layer;
        }
        self.kv.push(kept);
        self.kv.len() - 1
    }

    /// See [`Op::Attend`]. Attends to the keys and values of a KV layer that an earlier node stores.
    pub fn attend_to(&mut self, q: Val, layer: usize, args: Attention) -> Result<Val> {
        self.check_heads("q", q, args.heads * args.head_dim)?;
        self.check_attention(&args)?;
        let (layers, kept) = (self.kv.len(), args.kv_layer());
        match self.kv.get(layer) {
            None => return fail(format!("attend: KV layer {layer} of {layers}")),
            Some(kv) if *kv != kept => {
                return fail(format!("attend: want {kept}, KV layer {layer} has {kv}"));
            }
            Some(_) => {}
        }
        let value = Value { width: args.heads * args.v_dim, outputs_only: false };
        Ok(self.push(Op::Attend { q, kv: None, layer, args, sinks: None }, value))
    }

    fn check_attention(&self, args: &Attention) -> Result<()> {
        if args.alibi.is_some() && (args.causal || args.softcap.is_some()) {
            return fail("attend: slopes are for attention that is not causal and has no soft cap".into());
        }
        if args.kv_heads == 0 || !args.heads.is_multiple_of(args.kv_heads) {
            return fail(format!(
                "attend: {} heads are not a multiple of {} kv heads",
                args.heads, args.kv_heads
            ));
        }
        if args.temperature.is_some_and(|t| t.length == 0) {
            return fail("attend: a temperature that grows every 0 positions".into());
        }
        Ok(())
    }

    fn check_heads(&self, name: &str, value: Val, width: usize) -> Result<()> {
        self.check_tokens("attend", value)?;
        if self.width(value) != width {
            return fail(format!("attend: want {name} of {width} columns, got {}", self.width(value)));
        }
        Ok(())
    }
}
