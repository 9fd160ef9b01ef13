//! Views of columns.

use tern_graph::{Graph, Op, Val};

/// The value whose columns `v` is a view of, and the first of these columns; `v` itself if it is no view.
pub(crate) fn resolve_view(graph: &Graph, v: Val) -> (Val, usize) {
    match graph.nodes[v.index()].op {
        Op::Columns { x, start, .. } => {
            let (x, first) = resolve_view(graph, x);
            (x, first + start)
        }
        _ => (v, 0),
    }
}
