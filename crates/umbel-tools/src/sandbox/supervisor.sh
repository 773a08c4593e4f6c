# The first process of a sandbox. It says "ready" on its standard input, which is a socket, and is asked there: a line "SIZE
# WORD", then that many bytes of a tar archive with the code and its files. It answers with a line "WORD STATUS SIZE", and as
# many bytes of a tar archive with the files that the code left; the word is "ended" if the command did, and "full" if the
# archive could not be unpacked. "-" as the size says that the files are too large.
#
# once|session  FOLDER  MOST-FILES  COMMAND...
#
# Everything is in the folder: code/main is the code, work is where it runs, own is for this script. The command runs the
# code and ends (once), or waits for words on 5 and says them on 6 with a status when the code has run (session).
kind=$1 folder=$2 most=$3
shift 3
# Nothing of this machine that is open may come along.
for open in /proc/$$/fd/*; do
    if [ "${open##*/}" -gt 2 ] && [ -L "$open" ]; then
        echo "supervisor: descriptor ${open##*/} of this process is open" >&2
        exit 1
    fi
done
# The code gets neither the socket nor what this shell says.
exec 3<&0 </dev/null 4>&2 2>/dev/null
cd "$folder/work" || exit 1

# All other processes. Only the first process of a sandbox may do that: for it there are no others than the sandbox's.
signal_others() {
    if [ $$ -eq 1 ]; then kill "-$1" -1; fi
}

# Runs the command with the variables that are set for the code. They are for it alone, so they come in others.
run() {
    at=0
    while eval "[ -n \"\${CODE_ENV_$at+x}\" ]"; do
        eval "export \"\$CODE_ENV_$at\""
        unset "CODE_ENV_$at"
        at=$((at + 1))
    done
    exec "$@"
}

if [ "$kind" = session ]; then
    ask="$folder/own/ask" told="$folder/own/told"
    mkfifo "$ask" "$told" || exit 1
    # The command reads the one and writes to the other. Of the second this shell has only the end to read from, so that it
    # hears when nobody is left to write.
    exec 5<>"$ask" 6<>"$told" 7<"$ask" 8>"$told" 9<"$told"
    exec 6<&9 9<&-
    rm -f "$ask" "$told"
    { exec 3>&-; (run "$@" 2>&4 4>&- 5<&7 6>&8 7<&- 8>&-); echo "ended $?" >&8; } &
    exec 7<&- 8>&-
fi

echo ready >&3
while read -r size word <&3; do
    # All of it is read, so that the next request is found.
    if ! head -c "$size" <&3 | { tar -x -m -f - -C "${folder:-/}" --no-same-owner; is_there=$?; cat >/dev/null; exit "$is_there"; }; then
        echo "full 0 -" >&3
        continue
    fi
    # What goes on behind the code of a session stands still between requests.
    signal_others CONT
    if [ "$kind" = session ]; then
        echo "$word" >&5
        # Whatever else was said there is not the answer: the code can write there, but does not know the next word.
        while read -r said status <&6; do
            if [ "$said" = "$word" ] || [ "$said" = ended ]; then break; fi
        done
        if [ -z "$said" ]; then said=ended status=137; fi
        signal_others STOP
    else
        (run "$@" 2>&4 3>&- 4>&-)
        said=ended status=$?
        signal_others KILL
    fi
    result="$folder/own/result"
    rm -rf "$result"
    find . -maxdepth 1 -type f -print0 | head -z -n "$((most + 1))" |
        tar -c -f "$result" --format=gnu --null --no-recursion --ignore-failed-read -T -
    # 1 is for files that changed meanwhile.
    if [ $? -le 1 ]; then
        echo "$said $status $(($(wc -c <"$result")))" >&3
        cat "$result" >&3
    else
        echo "$said $status -" >&3
    fi
    rm -rf "$result"
done
