//! What `#[handler]` writes.
//!
//! Each hook gets the signature that the trait has, with one lifetime for all that it borrows, and `hooks` says which
//! of them are there.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, format_ident, quote, quote_spanned};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{
    Error, FnArg, ImplItem, ImplItemFn, ItemImpl, Lifetime, Path, PathArguments, Receiver, Result,
    ReturnType, Signature, Type,
};

use crate::signature::{names, peel};

/// A hook: its name, and how it is written without lifetimes.
struct Hook(&'static str, &'static str);

const HOOKS: [Hook; 13] = [
    Hook("on_input", "(&self, run: &Run, input: Arc<Content>) -> Result<Arc<Content>>"),
    Hook("before_run", "(&self, run: &Run) -> Result<Option<Content>>"),
    Hook("before_agent", "(&self, turn: &mut AgentTurn<'_>) -> Result<Step>"),
    Hook("before_model", "(&self, turn: &mut ModelTurn<'_>) -> Result<Step>"),
    Hook("after_model", "(&self, turn: &mut ModelTurn<'_>) -> Result<Step>"),
    Hook("wrap_model", "(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>>"),
    Hook("wrap_tool", "(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult"),
    Hook("on_event", "(&self, run: &Run, event: Event) -> Result<Event>"),
    Hook("on_output", "(&self, run: &Run, event: Arc<Event>) -> Result<Option<Arc<Event>>>"),
    Hook("on_error", "(&self, run: &Run, error: &Error) -> Result<Option<Content>>"),
    Hook("after_agent", "(&self, run: &Run, outcome: &Outcome) -> Result<()>"),
    Hook("after_run", "(&self, run: &Run, outcome: &Outcome) -> Result<()>"),
    Hook("close", "(&self) -> Result<()>"),
];

/// The methods of a handler that are left as they are.
const PLAIN: [&str; 4] = ["name", "hooks", "check", "configure"];

/// Those of them that are no hooks.
const NO_HOOKS: [&str; 3] = ["name", "hooks", "check"];

pub(crate) fn handler(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let umbel = crate_path(options)?;
    let mut item: ItemImpl = syn::parse2(item).map_err(|e| Error::new(e.span(), PLACE))?;
    check_trait(&item)?;
    let has = |name| methods(&item).any(|method| method.sig.ident == name);
    let (has_name, has_hooks) = (has("name"), has("hooks"));
    if !has_name {
        let hint = "a handler needs a name, for messages: add `fn name(&self) -> &str { \"…\" }`";
        return Err(Error::new_spanned(&item.self_ty, hint));
    }
    let hooks = hooks(&umbel, &item);
    for part in &mut item.items {
        if let ImplItem::Fn(method) = part {
            rewrite(&umbel, method)?;
        }
    }
    if !has_hooks {
        item.items.push(ImplItem::Verbatim(hooks));
    }
    Ok(quote!(#item))
}

const PLACE: &str = "`#[handler]` stands on `impl Handler for …`";

/// Where the types of Umbel are found: `::umbel`, or what `crate = …` says.
fn crate_path(options: TokenStream) -> Result<Path> {
    let mut path: Path = syn::parse_quote!(::umbel);
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("crate") {
            return Err(meta.error("unknown option: a handler can have `crate = …`"));
        }
        path = meta.value()?.call(Path::parse_mod_style)?;
        Ok(())
    });
    parser.parse2(options)?;
    Ok(path)
}

fn check_trait(item: &ItemImpl) -> Result<()> {
    let name = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
    match name {
        Some(name) if name.ident == "Handler" => Ok(()),
        _ => Err(Error::new_spanned(&item.self_ty, PLACE)),
    }
}

fn methods(item: &ItemImpl) -> impl Iterator<Item = &ImplItemFn> {
    item.items.iter().filter_map(|part| match part {
        ImplItem::Fn(method) => Some(method),
        _ => None,
    })
}

/// The method that says which hooks there are. One that is compiled under a condition counts under the same.
fn hooks(umbel: &Path, item: &ItemImpl) -> TokenStream {
    let hooks = methods(item).filter(|method| !NO_HOOKS.iter().any(|name| method.sig.ident == name));
    let hooks = hooks.map(|method| {
        let conditions = method.attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
        let name = format_ident!("{}", method.sig.ident.to_string().to_uppercase());
        quote!(#(#conditions)* let hooks = hooks.union(#umbel::Hooks::#name);)
    });
    quote! {
        fn hooks(&self) -> #umbel::Hooks {
            let hooks = #umbel::Hooks::NONE;
            #(#hooks)*
            hooks
        }
    }
}

/// Gives a hook that is written as `async fn` or plain `fn` the form that the trait has.
fn rewrite(umbel: &Path, method: &mut ImplItemFn) -> Result<()> {
    let name = method.sig.ident.to_string();
    if PLAIN.contains(&name.as_str()) {
        return Ok(());
    }
    let Some(hook) = HOOKS.iter().find(|hook| hook.0 == name) else {
        let hooks: Vec<&str> = HOOKS.iter().map(|hook| hook.0).collect();
        let hint = format!("a handler has no hook `{name}`: there are configure, {}", hooks.join(", "));
        return Err(Error::new(method.sig.ident.span(), hint));
    };
    if is_full(&method.sig) {
        return Ok(());
    }
    check(hook, &method.sig)?;
    let lifetime = Lifetime::new("'hook", Span::call_site());
    for input in &mut method.sig.inputs {
        match input {
            FnArg::Receiver(receiver) => *receiver = syn::parse_quote!(&#lifetime self),
            FnArg::Typed(typed) => *typed.ty = borrowed(hook, &typed.ty, &lifetime)?,
        }
    }
    method.sig.generics.params.push(syn::parse_quote!(#lifetime));
    let ReturnType::Type(_, output) = &method.sig.output else { return Err(misfit(hook, &method.sig)) };
    // Errors about the result are shown where its type is written.
    let (body, span) = (&method.block, Span::mixed_site().located_at(output.span()));
    let body = if method.sig.asyncness.take().is_some() {
        // The first line tells the compiler the type that `return` and `?` give.
        quote_spanned! {span=> {
            #umbel::Work::later(async move {
                if let ::std::option::Option::Some(result) = ::std::option::Option::None::<#output> {
                    return result;
                }
                #[allow(clippy::diverging_sub_expression)]
                let result: #output = #body;
                #[allow(unreachable_code)]
                result
            })
        }}
    } else {
        quote_spanned! {span=> {
            #[allow(clippy::redundant_closure_call)]
            let result = (move || -> #output #body)();
            #umbel::Work::done(result)
        }}
    };
    let output: Type = syn::parse2(named(quote!(#output), &lifetime))?;
    method.sig.output = syn::parse2(quote_spanned!(span=> -> #umbel::Work<#lifetime, #output>))?;
    method.block = syn::parse2(body)?;
    Ok(())
}

/// Whether it has the form of the trait already.
fn is_full(sig: &Signature) -> bool {
    sig.asyncness.is_none() && matches!(&sig.output, ReturnType::Type(_, ty) if names(ty, "Work"))
}

fn check(hook: &Hook, sig: &Signature) -> Result<()> {
    let expected = hook.1.split(" -> ").next().unwrap_or_default().matches(": ").count() + 1;
    let takes_self = matches!(
        sig.inputs.first(),
        Some(FnArg::Receiver(Receiver { reference: Some(_), mutability: None, .. }))
    );
    if !takes_self || sig.inputs.len() != expected {
        return Err(misfit(hook, sig));
    }
    if !sig.generics.params.is_empty() {
        let hint = format!(
            "the attribute names the lifetimes: write `async fn {}{}`, or the form of the trait, which returns a `Work`",
            hook.0, hook.1
        );
        return Err(Error::new_spanned(&sig.generics, hint));
    }
    Ok(())
}

fn misfit(hook: &Hook, sig: &Signature) -> Error {
    let Hook(name, signature) = hook;
    Error::new_spanned(sig, format!("the hook is `async fn {name}{signature}`, or the same without `async`"))
}

/// The type of an argument that lives as long as the hook works.
fn borrowed(hook: &Hook, ty: &Type, lifetime: &Lifetime) -> Result<Type> {
    match peel(ty) {
        Type::Reference(reference) => {
            let mut reference = reference.clone();
            reference.lifetime.get_or_insert_with(|| lifetime.clone());
            Ok(reference.into())
        }
        ty => {
            let mut ty: Type = syn::parse2(named(quote!(#ty), lifetime))?;
            // What a layer takes by value borrows too, though that need not be written.
            if hook.0.starts_with("wrap_")
                && let Type::Path(path) = &mut ty
                && let Some(last) = path.path.segments.last_mut()
                && last.arguments.is_none()
            {
                last.arguments = PathArguments::AngleBracketed(syn::parse_quote!(<#lifetime>));
            }
            Ok(ty)
        }
    }
}

/// The same with a name for each `'_`.
fn named(tokens: TokenStream, lifetime: &Lifetime) -> TokenStream {
    let mut result = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(quote)
                if quote.as_char() == '\''
                    && tokens
                        .next_if(|next| matches!(next, TokenTree::Ident(name) if name == "_"))
                        .is_some() =>
            {
                lifetime.to_tokens(&mut result);
            }
            TokenTree::Group(group) => {
                let inner = named(group.stream(), lifetime);
                result.append(Group::new(group.delimiter(), inner));
            }
            token => result.append(token),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the user is told of a handler that cannot be.
    fn refused(item: TokenStream) -> String {
        handler(quote!(), item).unwrap_err().to_string()
    }

    /// What the user is told of a handler with a name and that hook.
    fn refused_hook(hook: &TokenStream) -> String {
        refused(quote!(impl Handler for H { fn name(&self) -> &str { "h" } #hook }))
    }

    #[test]
    fn it_stands_on_a_handler_with_a_name() {
        assert_eq!(
            refused(quote!(
                struct H;
            )),
            PLACE
        );
        assert_eq!(refused(quote!(impl H {})), PLACE);
        assert_eq!(refused(quote!(impl Tool for H {})), PLACE);
        let message = refused(quote!(impl umbel::Handler for H {}));
        assert!(message.starts_with("a handler needs a name"), "{message}");
    }

    #[test]
    fn a_hook_that_does_not_exist_is_answered_with_those_that_do() {
        let message = refused_hook(&quote!(
            async fn before_tool(&self) {}
        ));
        assert!(message.starts_with("a handler has no hook `before_tool`: there are configure, on_input, "));
        assert!(message.ends_with(", after_run, close"), "{message}");
    }

    #[test]
    fn a_hook_that_does_not_fit_is_answered_with_its_signature() {
        let expected = "the hook is `async fn on_error(&self, run: &Run, error: &Error) -> Result<Option<Content>>`, \
                        or the same without `async`";
        for hook in [
            quote!(
                async fn on_error(&self, error: &Error) -> Result<Option<Content>> {
                    Ok(None)
                }
            ),
            quote!(
                fn on_error(&self, run: &Run, error: &Error, more: ()) -> Result<Option<Content>> {
                    Ok(None)
                }
            ),
            quote!(
                fn on_error(run: &Run, cx: (), error: &Error) -> Result<Option<Content>> {
                    Ok(None)
                }
            ),
            quote!(
                fn on_error(&mut self, run: &Run, error: &Error) -> Result<Option<Content>> {
                    Ok(None)
                }
            ),
            quote!(
                fn on_error(&self, run: &Run, error: &Error) {}
            ),
        ] {
            assert_eq!(refused_hook(&hook), expected);
        }
        let message = refused_hook(&quote!(
            async fn before_run<'a>(&'a self, run: &'a Run) -> R {
                Ok(None)
            }
        ));
        assert!(message.starts_with("the attribute names the lifetimes: write `async fn before_run(&self"));
    }

    #[test]
    fn an_unknown_option_is_refused() {
        let item = quote!(impl Handler for H { fn name(&self) -> &str { "h" } });
        let message = handler(quote!(name = "h"), item.clone()).unwrap_err().to_string();
        assert_eq!(message, "unknown option: a handler can have `crate = …`");
        let written = handler(quote!(crate = umbel_core), item).unwrap().to_string();
        assert!(written.contains("umbel_core :: Hooks :: NONE"), "{written}");
    }

    #[test]
    fn the_hooks_it_knows_are_those_of_the_trait() {
        let source = include_str!("../../umbel-core/src/handler.rs");
        let declared = source.split_once("hooks! {").unwrap().1.split_once('}').unwrap().0;
        let mut declared: Vec<&str> = declared.split('"').skip(1).step_by(2).collect();
        declared.retain(|name| *name != "configure");
        let mut known: Vec<&str> = HOOKS.iter().map(|hook| hook.0).collect();
        declared.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, declared);
    }
}
