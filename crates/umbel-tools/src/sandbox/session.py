"""Runs code again and again with the same definitions: a word on 5 asks for it, the word and a status on 6 say that it ran."""


def serve(path, ask, told):
    import linecache
    import os
    import sys
    import traceback

    os.set_inheritable(5, False)
    os.set_inheritable(6, False)
    sys.argv = [path]
    getpid, leave = os.getpid, os._exit
    space = sys.modules["__main__"].__dict__
    for name in [name for name in space if not name.startswith("__")]:
        del space[name]
    for count, word in enumerate(ask, 1):
        status, mine = 0, getpid()
        try:
            with open(path, encoding="utf-8") as file:
                source = file.read()
            # A name of its own, so that errors in earlier code show the lines of that code.
            name = "<code %d>" % count
            linecache.cache[name] = (len(source), None, source.splitlines(True), name)
            exec(compile(source, name, "exec"), space)
        except SystemExit as end:
            if isinstance(end.code, int):
                status = end.code & 255
            elif end.code is not None:
                print(end.code, file=sys.stderr)
                status = 1
        except BaseException as error:
            status = 1
            trace = error.__traceback__
            traceback.print_exception(type(error), error, trace and trace.tb_next)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        # A child that the code made, and that ran to its end as well, is not to answer or to wait for more.
        if getpid() != mine:
            leave(status)
        told.write("%s %d\n" % (word.strip(), status))
        told.flush()


serve(__import__("sys").argv[1], open(5, encoding="utf-8"), open(6, "w", encoding="utf-8"))
