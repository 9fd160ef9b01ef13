//! How a graph reads its weights: what a backend needs to know to lay out a tensor when it is stored.

/// How an op reads a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One row per token id, as an embedding.
    Table,
    /// All rows, as the matrix of a linear.
    Matrix,
    /// The rows of some experts, each a matrix.
    Experts,
    /// A few values, as the weight of a norm, a bias or a scale.
    Vector,
}

/// All roles of one weight. Most weights have one; a tied embedding is both a table and a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Read as [`Role::Table`].
    pub table: bool,
    /// Read as [`Role::Matrix`].
    pub matrix: bool,
    /// Read as [`Role::Vector`].
    pub vector: bool,
    /// Matrices of a tensor that is read as [`Role::Experts`]; 0 for others.
    pub experts: usize,
    /// A choice of experts depends on what is computed with it: a small error may change which experts
    /// compute a token, and so its result by much more.
    pub chooses: bool,
}

impl Roles {
    /// The same roles and one more, of a weight with this number of matrices.
    pub fn with(self, role: Role, experts: usize) -> Roles {
        match role {
            Role::Table => Roles { table: true, ..self },
            Role::Matrix => Roles { matrix: true, ..self },
            Role::Vector => Roles { vector: true, ..self },
            Role::Experts => Roles { experts, ..self },
        }
    }
}
