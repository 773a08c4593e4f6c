//! A function as a tool: what the model is told of it, and where each argument comes from.

use proc_macro2::Ident;
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, ItemFn, Lit, Meta, Pat, PatType, PathArguments,
    PathSegment, Receiver, Result, Type,
};

/// A function that can be a tool.
pub(crate) struct Function {
    /// The function, without what only the tool needs.
    pub(crate) item: ItemFn,
    /// Whether it is a method.
    pub(crate) is_method: bool,
    /// What the model is told of it.
    pub(crate) description: String,
    /// Its arguments in order, `&self` left out.
    pub(crate) inputs: Vec<Input>,
}

/// Where an argument comes from.
pub(crate) enum Input {
    /// The model.
    Model(Box<Argument>),
    /// The call: it is a `&ToolContext`.
    Context,
    /// The runner: it is a `Dep<T>`.
    Dependency,
}

/// An argument that the model gives.
pub(crate) struct Argument {
    /// Doc comments, and what serde and schemars are told.
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

impl Function {
    pub(crate) fn parse(mut item: ItemFn) -> Result<Self> {
        let description = doc_of(&item.attrs);
        if description.is_empty() {
            let hint = "a tool needs a description: write a doc comment (`/// …`) above the function \
                        that tells the model what the tool does";
            return Err(Error::new(item.sig.ident.span(), hint));
        }
        if !item.sig.generics.params.is_empty() {
            let hint = "a tool cannot be generic: the model must know the types of the arguments";
            return Err(Error::new_spanned(&item.sig.generics, hint));
        }
        let is_async = item.sig.asyncness.is_some();
        let mut is_method = false;
        let mut inputs = Vec::new();
        for input in &mut item.sig.inputs {
            match input {
                FnArg::Receiver(receiver) => {
                    check_receiver(receiver)?;
                    is_method = true;
                }
                FnArg::Typed(typed) => inputs.push(Input::parse(typed, is_async)?),
            }
        }
        Ok(Self { item, is_method, description, inputs })
    }

    /// The arguments that the model gives.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &Argument> {
        self.inputs.iter().filter_map(|input| match input {
            Input::Model(argument) => Some(&**argument),
            Input::Context | Input::Dependency => None,
        })
    }
}

impl Input {
    /// Reads an argument, and takes away what rustc does not accept at an argument.
    fn parse(typed: &mut PatType, is_async: bool) -> Result<Self> {
        let (attrs, rest) = typed.attrs.drain(..).partition(is_for_the_field);
        typed.attrs = rest;
        match peel(&typed.ty) {
            Type::Reference(reference)
                if reference.mutability.is_none() && names(&reference.elem, "ToolContext") =>
            {
                if is_async {
                    return Ok(Self::Context);
                }
                let hint = "a function that runs on a thread of its own cannot borrow the context: \
                            make it an `async fn`, or take what it needs as a `Dep<T>`";
                Err(Error::new_spanned(&typed.ty, hint))
            }
            Type::Reference(_) => {
                let hint = "a tool owns its arguments: take a `String` and not a `&str`, for example; \
                            only the context is borrowed, as `&ToolContext`";
                Err(Error::new_spanned(&typed.ty, hint))
            }
            ty if is_dependency(ty) => Ok(Self::Dependency),
            ty => {
                let Pat::Ident(pat) = &*typed.pat else {
                    let hint = "an argument of a tool needs a plain name: the model gives it by that name";
                    return Err(Error::new_spanned(&typed.pat, hint));
                };
                Ok(Self::Model(Box::new(Argument { attrs, name: pat.ident.clone(), ty: ty.clone() })))
            }
        }
    }
}

fn check_receiver(receiver: &Receiver) -> Result<()> {
    if receiver.reference.is_some() && receiver.mutability.is_none() {
        return Ok(());
    }
    let hint = "a method that is a tool takes `&self`: calls may run at the same time";
    Err(Error::new_spanned(receiver, hint))
}

/// Whether an attribute of an argument belongs to the field that stands for it.
fn is_for_the_field(attr: &Attribute) -> bool {
    ["doc", "serde", "schemars"].iter().any(|name| attr.path().is_ident(name))
}

/// The text of the doc comments.
fn doc_of(attrs: &[Attribute]) -> String {
    let lines = attrs.iter().filter_map(|attr| match &attr.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<String> =
        lines.map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned()).collect();
    lines.join("\n").trim().to_owned()
}

/// The type without the invisible or visible parentheses around it.
pub(crate) fn peel(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => peel(&group.elem),
        Type::Paren(paren) => peel(&paren.elem),
        ty => ty,
    }
}

fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match peel(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// Whether that is the last name in the type's path.
pub(crate) fn names(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

fn is_dependency(ty: &Type) -> bool {
    last_segment(ty).is_some_and(|segment| match &segment.arguments {
        PathArguments::AngleBracketed(generics) => {
            let mut types = generics.args.iter();
            segment.ident == "Dep"
                && matches!((types.next(), types.next()), (Some(GenericArgument::Type(_)), None))
        }
        _ => false,
    })
}
