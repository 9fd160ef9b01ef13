//! Random texts under a grammar match it, and hostile grammars stay within the limits.

#[cfg(test)]
mod arguments;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod gbnf;
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
