//! The MLP of mixtures of experts: a router, the experts it chooses, and experts that all tokens share.

use tern_graph::{Activation, ExpertGroups, Gating, Graph, GraphError, Routing, Val};

use crate::{Build, ModelError};

/// What differs between the experts of decoders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertStyle {
    /// Experts per layer.
    pub(crate) count: usize,
    /// Columns inside each expert.
    pub(crate) ff: usize,
    /// Columns inside the expert that all tokens share; 0 if there is none.
    pub(crate) shared_ff: usize,
    /// The first layer with experts; those before it have a plain MLP.
    pub(crate) first_layer: usize,
    /// How experts are chosen.
    pub(crate) routing: Routing,
    /// The activation inside experts.
    pub(crate) activation: Activation,
}

impl Build<'_> {
    /// The experts that metadata describes, with defaults of the architecture for gating and renormalisation.
    pub(crate) fn expert_style(
        &mut self,
        gating: Gating,
        renormalise: bool,
    ) -> Result<ExpertStyle, ModelError> {
        self.reads_experts = true;
        let keys = self.keys();
        let fail = |name: &str, is: usize, want: String| Err(ModelError::value(keys.key(name), is, want));
        let (count, used) = (keys.usize("expert_count")?, keys.usize("expert_used_count")?);
        if count == 0 || count > MAX_EXPERTS {
            return fail("expert_count", count, format!("1 to {MAX_EXPERTS}"));
        }
        if used == 0 || used > count {
            return fail("expert_used_count", used, format!("1 to the {count} experts"));
        }
        let ff = keys.optional_usize("expert_feed_forward_length")?.unwrap_or(self.config.ff);
        let shared = keys.optional_usize("expert_shared_count")?.unwrap_or(0);
        let shared_ff = keys.optional_usize("expert_shared_feed_forward_length")?;
        let shared_ff = shared_ff.filter(|n| *n > 0).unwrap_or_else(|| ff.saturating_mul(shared));
        for (name, size, least) in
            [("expert_feed_forward_length", ff, 1), ("expert_shared_feed_forward_length", shared_ff, 0)]
        {
            if size < least || size > MAX_FF {
                return fail(name, size, format!("{least} to {MAX_FF}"));
            }
        }
        let gating = match keys.optional_usize("expert_gating_func")?.unwrap_or(0) {
            0 => gating,
            1 => Gating::Softmax,
            2 => Gating::Sigmoid,
            3 => Gating::ChosenSoftmax,
            4 => Gating::SqrtSoftplus,
            other => return fail("expert_gating_func", other, "1 to 4".into()),
        };
        let groups = keys.optional_usize("expert_group_count")?.unwrap_or(0);
        let groups = match keys.optional_usize("expert_group_used_count")?.unwrap_or(groups) {
            _ if groups <= 1 => None,
            used => Some(ExpertGroups { count: groups, used }),
        };
        let renormalise = keys.optional_bool("expert_weights_norm")?.unwrap_or(renormalise);
        let scale = keys.optional_f32("expert_weights_scale")?.filter(|s| *s != 0.0).unwrap_or(1.0);
        Ok(ExpertStyle {
            count,
            ff,
            shared_ff,
            first_layer: keys.optional_usize("leading_dense_block_count")?.unwrap_or(0),
            routing: Routing { used, gating, groups, renormalise, scale },
            activation: Activation::Silu,
        })
    }

    /// The same, if the file has experts.
    pub(crate) fn optional_expert_style(
        &mut self,
        gating: Gating,
        renormalise: bool,
    ) -> Result<Option<ExpertStyle>, ModelError> {
        match self.keys().optional_usize("expert_count")? {
            None | Some(0) => Ok(None),
            Some(_) => Ok(Some(self.expert_style(gating, renormalise)?)),
        }
    }

    /// The first layer with a router, for files whose keys do not say it.
    pub(crate) fn first_routed_layer(&self) -> usize {
        let is_routed = |layer: &usize| self.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
        (0..self.config.layers).find(is_routed).unwrap_or(self.config.layers)
    }

    /// The experts of one layer on a normalised value. `[tokens, width]`
    pub(crate) fn expert_mlp(
        &mut self,
        x: Val,
        layer: usize,
        style: &ExpertStyle,
    ) -> Result<Val, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let ExpertStyle { count, routing, .. } = *style;
        let logits = self.linear(x, &name("ffn_gate_inp"), count)?;
        let bias = self.optional_vector(name("exp_probs_b.bias"), count)?;
        let route = self.graph.route(logits, bias, routing)?;
        let mixed = self.chosen_experts(x, route, layer, style)?;
        if style.shared_ff == 0 {
            return Ok(mixed);
        }
        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(name);
        let mut shared = self.gated_mlp_of(x, names, style.shared_ff, style.activation, None)?;
        if self.has(&name("ffn_gate_inp_shexp.weight")) {
            let gate = self.linear(x, &name("ffn_gate_inp_shexp"), 1)?;
            shared = self.graph.gate_rows(shared, gate)?;
        }
        Ok(self.graph.add(mixed, shared)?)
    }

    /// The weighted sum of the experts that a route has chosen; gate and up may be one
    /// tensor. `[tokens, width]`
    pub(crate) fn chosen_experts(
        &mut self,
        x: Val,
        route: Val,
        layer: usize,
        style: &ExpertStyle,
    ) -> Result<Val, ModelError> {
        let ExpertStyle { count, ff, .. } = *style;
        let (width, name) = (self.config.width, |part: &str| format!("blk.{layer}.{part}"));
        let (gate, up) = if self.has(&name("ffn_gate_up_exps.weight")) {
            let both = self.expert_linear(x, route, &name("ffn_gate_up_exps"), [count, 2 * ff, width])?;
            (self.graph.head_columns(both, 2 * ff, 0, ff)?, self.graph.head_columns(both, 2 * ff, ff, ff)?)
        } else {
            let inner = [count, ff, width];
            let gate = self.expert_linear(x, route, &name("ffn_gate_exps"), inner)?; // [tokens, used * ff]
            (gate, self.expert_linear(x, route, &name("ffn_up_exps"), inner)?)
        };
        let hidden = self.graph.gated(gate, up, style.activation)?;
        let parts = self.expert_linear(hidden, route, &name("ffn_down_exps"), [count, width, ff])?;
        Ok(self.graph.mix(parts, route)?)
    }

    /// The weighted sum of experts without a gate: up, a function and down, on `x` of any width.
    /// `[tokens, width of x]`
    pub(crate) fn plain_experts(
        &mut self,
        x: Val,
        route: Val,
        layer: usize,
        style: &ExpertStyle,
        function: impl FnOnce(&mut Graph, Val) -> Result<Val, GraphError>,
    ) -> Result<Val, ModelError> {
        let ExpertStyle { count, ff, .. } = *style;
        let (width, name) = (self.graph.width(x), |part: &str| format!("blk.{layer}.{part}"));
        let up = self.expert_linear(x, route, &name("ffn_up_exps"), [count, ff, width])?;
        let hidden = function(&mut self.graph, up)?;
        let parts = self.expert_linear(hidden, route, &name("ffn_down_exps"), [count, width, ff])?;
        Ok(self.graph.mix(parts, route)?)
    }

    /// A linear of experts, with `.bias` and `.scale` if the source has them. `[tokens, used * rows]`
    pub(crate) fn expert_linear(
        &mut self,
        x: Val,
        route: Val,
        name: &str,
        [count, rows, cols]: [usize; 3],
    ) -> Result<Val, ModelError> {
        let weight = self.graph.experts(format!("{name}.weight"), count, rows, cols)?;
        let scale = self.optional_vector(format!("{name}.scale"), count)?;
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) { Some(self.graph.matrix(bias, count, rows)?) } else { None };
        Ok(self.graph.expert_linear_with(x, Some(route), weight, scale, bias)?)
    }
}

/// More than any model has.
const MAX_EXPERTS: usize = 1 << 12;
/// As of a plain MLP.
const MAX_FF: usize = 1 << 24;
