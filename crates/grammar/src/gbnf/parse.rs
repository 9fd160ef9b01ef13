//! The text of a GBNF grammar to expressions, one per rule.

use std::collections::BTreeMap;
use std::str::Chars;

use crate::limits;

/// Nesting depth of groups.
const DEPTH: usize = 64;

/// What a rule matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    /// These characters, one after the other.
    Text(String),
    /// One character of these ranges.
    Class(Vec<(char, char)>),
    /// One character that is in none of these ranges.
    NotClass(Vec<(char, char)>),
    /// What another rule matches.
    Rule(String),
    Sequence(Vec<Expression>),
    Choice(Vec<Expression>),
    /// Repeated at least, and at most, this number of times.
    Repeat(Box<Expression>, usize, Option<usize>),
}

pub(super) type Definitions = BTreeMap<String, Expression>;

/// Whether a character may be part of a rule's name.
pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Parses a grammar; an error has the line.
pub(super) fn parse(text: &str) -> Result<Definitions, String> {
    let mut parser = Parser { rest: text.chars(), text, depth: 0 };
    let located = |parser: &Parser<'_>, why: String| format!("line {}: {why}", parser.line());
    let mut rules = Definitions::new();
    parser.skip_space(true);
    while parser.peek().is_some() {
        let (name, rule) = parser.rule().map_err(|why| located(&parser, why))?;
        if rules.insert(name.clone(), rule).is_some() {
            return Err(located(&parser, format!("rule `{name}` is defined twice")));
        }
        parser.skip_space(true);
    }
    Ok(rules)
}

struct Parser<'t> {
    rest: Chars<'t>,
    text: &'t str,
    depth: usize,
}

type Parsed<T> = Result<T, String>;

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn eat(&mut self, c: char) -> bool {
        let eats = self.peek() == Some(c);
        if eats {
            self.rest.next();
        }
        eats
    }

    /// The line of the next character.
    fn line(&self) -> usize {
        let read = self.text.len() - self.rest.as_str().len();
        1 + self.text[..read].matches('\n').count()
    }

    /// Space and comments; line breaks only if `lines`.
    fn skip_space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.rest.next();
                    }
                }
                ' ' | '\t' => drop(self.rest.next()),
                '\n' | '\r' if lines => drop(self.rest.next()),
                _ => return,
            }
        }
    }

    fn found(&self) -> String {
        self.peek().map_or("the end".into(), |c| format!("{c:?}"))
    }

    fn name(&mut self) -> Parsed<String> {
        let rest = self.rest.as_str();
        let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(format!("expected the name of a rule, got {}", self.found()));
        }
        self.rest = rest[length..].chars();
        Ok(rest[..length].to_owned())
    }

    /// `name ::= alternatives`
    fn rule(&mut self) -> Parsed<(String, Expression)> {
        let name = self.name()?;
        self.skip_space(false);
        if !(self.eat(':') && self.eat(':') && self.eat('=')) {
            return Err(format!("expected `::=` after `{name}`"));
        }
        self.skip_space(true);
        let rule = self.alternatives(false)?;
        match self.peek() {
            None | Some('\n' | '\r') => Ok((name, rule)),
            _ => Err(format!("expected an item or the end of the line, got {}", self.found())),
        }
    }

    fn alternatives(&mut self, nested: bool) -> Parsed<Expression> {
        let mut choices = vec![self.sequence(nested)?];
        while self.eat('|') {
            self.skip_space(true);
            choices.push(self.sequence(nested)?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { Expression::Choice(choices) })
    }

    fn sequence(&mut self, nested: bool) -> Parsed<Expression> {
        let mut items: Vec<Expression> = vec![];
        loop {
            let item = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.rest.next();
                    Expression::NotClass(vec![])
                }
                Some('(') => self.group()?,
                Some('<' | '!') => return Err("tokens (`<...>`) are not supported".into()),
                Some(c) if is_name(c) => Expression::Rule(self.name()?),
                Some('*' | '+' | '?' | '{') => {
                    return Err(format!("{} must follow an item", self.found()));
                }
                _ => return Ok(Expression::Sequence(items)),
            };
            self.skip_space(nested);
            items.push(self.repeated(item, nested)?);
        }
    }

    fn group(&mut self) -> Parsed<Expression> {
        self.rest.next();
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("more than {DEPTH} groups inside each other"));
        }
        self.skip_space(true);
        let inner = self.alternatives(true)?;
        self.depth -= 1;
        if !self.eat(')') {
            return Err(format!("expected `)`, got {}", self.found()));
        }
        Ok(inner)
    }

    fn repeated(&mut self, mut item: Expression, nested: bool) -> Parsed<Expression> {
        loop {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(item),
            };
            self.rest.next();
            self.skip_space(nested);
            item = Expression::Repeat(Box::new(item), least, most);
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`, up to the brace.
    fn bounds(&mut self) -> Parsed<(usize, Option<usize>)> {
        self.rest.next();
        self.skip_space(true);
        let least = self.number()?;
        self.skip_space(true);
        let mut most = Some(least);
        if self.eat(',') {
            self.skip_space(true);
            most = if self.peek() == Some('}') { None } else { Some(self.number()?) };
            self.skip_space(true);
        }
        if self.peek() != Some('}') {
            return Err(format!("expected `}}`, got {}", self.found()));
        }
        if most.is_some_and(|most| most < least) {
            return Err(format!("the repetition {{{least},{}}} is empty", most.unwrap_or(0)));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Parsed<usize> {
        let rest = self.rest.as_str();
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: usize = rest[..digits]
            .parse()
            .map_err(|_| format!("expected a number of repetitions, got {}", self.found()))?;
        if number > limits::REPETITIONS {
            return Err(format!("{number} repetitions: the limit is {}", limits::REPETITIONS));
        }
        self.rest = rest[digits..].chars();
        Ok(number)
    }

    fn literal(&mut self) -> Parsed<Expression> {
        self.rest.next();
        let mut text = String::new();
        while !self.eat('"') {
            text.push(self.character("a literal")?);
        }
        Ok(Expression::Text(text))
    }

    fn class(&mut self) -> Parsed<Expression> {
        self.rest.next();
        let negated = self.eat('^');
        let mut ranges = vec![];
        while !self.eat(']') {
            let first = self.character("a class")?;
            let mut last = first;
            let mut after = self.rest.clone();
            if after.next() == Some('-') && after.next() != Some(']') {
                self.rest.next();
                last = self.character("a class")?;
            }
            if first > last {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() && !negated {
            return Err("the class [] matches nothing".into());
        }
        Ok(if negated { Expression::NotClass(ranges) } else { Expression::Class(ranges) })
    }

    /// One character of a literal or a class.
    fn character(&mut self, of: &str) -> Parsed<char> {
        match self.rest.next().ok_or_else(|| format!("the end of {of} is missing"))? {
            '\\' => match self.rest.next() {
                Some('x') => self.hexadecimal(2),
                Some('u') => self.hexadecimal(4),
                Some('U') => self.hexadecimal(8),
                Some('t') => Ok('\t'),
                Some('r') => Ok('\r'),
                Some('n') => Ok('\n'),
                Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(c),
                Some(c) => Err(format!("unknown escape `\\{c}`")),
                None => Err(format!("the end of {of} is missing")),
            },
            c => Ok(c),
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> Parsed<char> {
        let text: String = self.rest.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&text, 16).ok().filter(|_| text.len() == digits);
        code.and_then(char::from_u32)
            .ok_or_else(|| format!("expected {digits} hexadecimal digits of a character, got {text:?}"))
    }
}
