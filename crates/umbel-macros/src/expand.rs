//! What `#[tool]` writes.
//!
//! All paths go through the `umbel` crate, so that users need no other dependency.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ReturnType;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::options::Options;
use crate::signature::{Function, Input};

pub(crate) fn tool(options: TokenStream, function: TokenStream) -> syn::Result<TokenStream> {
    let options = Options::parse(options)?;
    let function = Function::parse(syn::parse2(function)?)?;
    Ok(if function.is_method { method(&options, &function) } else { free(&options, &function) })
}

/// A unit struct with the function's name that is the tool, and has the function as `run`.
fn free(options: &Options, function: &Function) -> TokenStream {
    let (name, vis) = (&function.item.sig.ident, &function.item.vis);
    let docs = function.item.attrs.iter().filter(|attr| attr.path().is_ident("doc"));
    let mut run = function.item.clone();
    run.sig.ident = Ident::new("run", name.span());
    let allow = allow();
    let definitions = definitions(options, function);
    let answer = answer(function, &quote!(#name::run), None);
    quote! {
        #(#docs)*
        #[allow(non_camel_case_types)]
        #[derive(::std::clone::Clone, ::std::marker::Copy, ::std::fmt::Debug)]
        #vis struct #name;

        impl #name {
            #allow
            #run
        }

        const _: () = {
            #definitions

            impl ::umbel::Tool for #name {
                fn spec(&self) -> &::umbel::ToolSpec {
                    &SPEC
                }

                #[allow(unused_variables)]
                fn call<'a>(
                    &'a self,
                    cx: &'a ::umbel::ToolContext,
                    args: ::std::sync::Arc<::umbel::Object>,
                ) -> ::umbel::BoxFuture<'a, ::std::result::Result<::umbel::ToolOutput, ::umbel::ToolError>> {
                    #answer
                }
            }
        };
    }
}

/// The method as it is, and one more that makes the tool.
fn method(options: &Options, function: &Function) -> TokenStream {
    let method = &function.item;
    let name = &method.sig.ident;
    let make = format_ident!("{}_tool", name.unraw());
    let doc = format!("[`{name}`](Self::{name}) as a tool.");
    let allow = allow();
    let definitions = definitions(options, function);
    let answer = answer(function, &quote!(Self::#name), Some(quote!(&this)));
    quote! {
        #allow
        #method

        #[doc = #doc]
        #[allow(unused_variables, unreachable_pub)]
        pub fn #make(self: &::std::sync::Arc<Self>) -> ::umbel::FunctionTool {
            #definitions

            let this = ::std::sync::Arc::clone(self);
            ::umbel::FunctionTool::raw(::std::clone::Clone::clone(&*SPEC), move |cx, args| {
                let this = ::std::sync::Arc::clone(&this);
                #answer
            })
        }
    }
}

/// A tool owns its arguments even if it only reads them, and may be `async` just to need no thread of its own.
fn allow() -> TokenStream {
    quote!(#[allow(clippy::needless_pass_by_value, clippy::unused_async)])
}

/// The type of the arguments, and the spec, made when it is first asked for.
fn definitions(options: &Options, function: &Function) -> TokenStream {
    let fields = function.arguments().map(|argument| {
        let (attrs, name, ty) = (&argument.attrs, &argument.name, &argument.ty);
        quote!(#(#attrs)* #name: #ty)
    });
    let name = match &options.name {
        Some(name) => name.value(),
        None => function.item.sig.ident.unraw().to_string(),
    };
    let description = &function.description;
    let settings = &options.settings;
    let mutability = (!settings.is_empty()).then(|| quote!(mut));
    quote! {
        #[derive(::umbel::macro_support::serde::Deserialize, ::umbel::macro_support::schemars::JsonSchema)]
        #[serde(crate = "::umbel::macro_support::serde")]
        #[schemars(crate = "::umbel::macro_support::schemars")]
        struct __Args {
            #(#fields,)*
        }

        static SPEC: ::std::sync::LazyLock<::umbel::ToolSpec> = ::std::sync::LazyLock::new(|| {
            let #mutability spec =
                ::umbel::ToolSpec::new(#name, #description, ::umbel::ToolSpec::schema_of::<__Args>());
            #(#settings)*
            spec
        });
    }
}

/// A future that calls `target` with what `cx` and `args` hold.
fn answer(function: &Function, target: &TokenStream, receiver: Option<TokenStream>) -> TokenStream {
    let mut dependencies = Vec::new();
    let inputs: Vec<TokenStream> = receiver
        .into_iter()
        .chain(function.inputs.iter().map(|input| match input {
            Input::Model(argument) => {
                let name = &argument.name;
                quote!(args.#name)
            }
            Input::Context => quote!(cx),
            Input::Dependency => {
                let name = format_ident!("dependency_{}", dependencies.len());
                dependencies.push(quote!(let #name = ::umbel::Dep(cx.dependency()?);));
                quote!(#name)
            }
        }))
        .collect();
    // Errors about the result are shown where its type is written.
    let span = match &function.item.sig.output {
        ReturnType::Default => Span::call_site(),
        ReturnType::Type(_, ty) => Span::call_site().located_at(ty.span()),
    };
    let returned = |value| quote_spanned!(span=> ::umbel::function_tool::Returned(#value).into_answer());
    let answer = if function.item.sig.asyncness.is_some() {
        returned(quote!(#target(#(#inputs),*).await))
    } else {
        let answer = returned(quote!(#target(#(#inputs),*)));
        quote!(::umbel::function_tool::run_blocking(cx, move || #answer).await)
    };
    quote! {
        ::std::boxed::Box::pin(async move {
            #[allow(unused_imports)]
            use ::umbel::function_tool::ReturnedPlain as _;
            let args: __Args = ::umbel::function_tool::parse_args(&SPEC, &args)?;
            #(#dependencies)*
            #answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the user is told of a tool that cannot be.
    fn refused(options: TokenStream, function: TokenStream) -> String {
        tool(options, function).unwrap_err().to_string()
    }

    #[test]
    fn a_tool_without_a_doc_comment_is_told_to_have_one() {
        let message = refused(
            quote!(),
            quote!(
                async fn f() {}
            ),
        );
        assert!(
            message.starts_with("a tool needs a description: write a doc comment (`/// …`)"),
            "{message}"
        );
        let blank = quote!(
            #[doc = " "]
            async fn f() {}
        );
        assert_eq!(refused(quote!(), blank), message);
    }

    #[test]
    fn an_unknown_option_is_answered_with_the_known_ones() {
        let function = quote!(
            /// Works.
            async fn f() {}
        );
        assert_eq!(
            refused(quote!(readonly), function.clone()),
            "unknown option: a tool can have `name = \"…\"`, `long_running`, `confirm`, `read_only`, `idempotent`, \
             `exclusive` and `timeout_secs = 5`"
        );
        assert_eq!(refused(quote!(name = ""), function.clone()), "the name of a tool cannot be empty");
        assert_eq!(refused(quote!(timeout_secs = "x"), function), "expected integer literal");
    }

    #[test]
    fn what_cannot_be_an_argument_is_refused_with_a_hint() {
        let cases = [
            (
                quote!(
                    async fn f(city: &str) {}
                ),
                "a tool owns its arguments: take a `String`",
            ),
            (
                quote!(
                    async fn f(cx: &mut ToolContext) {}
                ),
                "a tool owns its arguments",
            ),
            (
                quote!(
                    fn f(cx: &ToolContext) {}
                ),
                "a function that runs on a thread of its own cannot borrow",
            ),
            (
                quote!(
                    async fn f((a, b): (u8, u8)) {}
                ),
                "an argument of a tool needs a plain name",
            ),
            (
                quote!(
                    async fn f<T>(a: T) {}
                ),
                "a tool cannot be generic",
            ),
            (
                quote!(
                    async fn f(&mut self) {}
                ),
                "a method that is a tool takes `&self`",
            ),
            (
                quote!(
                    async fn f(self) {}
                ),
                "a method that is a tool takes `&self`",
            ),
        ];
        for (function, expected) in cases {
            let message = refused(quote!(), quote!(#[doc = "Works."] #function));
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
