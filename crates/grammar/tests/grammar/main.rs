//! Texts made at random under a grammar follow it, and no grammar of a stranger costs more than it may.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod random_schemas;
#[cfg(test)]
mod texts;
#[cfg(test)]
mod validate;
#[cfg(test)]
mod vocabularies;
#[cfg(test)]
mod walk;
