# The first process of a sandbox. It is asked over its standard input, which is a socket: a line "SIZE WORD", then that many
# bytes of a tar archive with the code and its files. It answers there with a line "WORD STATUS SIZE", and as many bytes of a
# tar archive with the files that the code left; the word is "ended" if the command did, and "-" as the size says that the
# files are too large.
#
# once|session  FOLDER  MOST-FILES  COMMAND...
#
# Everything is in the folder: code/main is the code, work is where it runs, own is for this script. The command runs the
# code and ends (once), or waits for words on 5 and says them on 6 with a status when the code has run (session).
kind=$1 folder=$2 most=$3
shift 3
# The code gets neither the socket nor what this shell says.
exec 3<&0 </dev/null 4>&2 2>/dev/null
cd "$folder/work" || exit 1

# All other processes. Only the first process of a sandbox may do that: for it there are no others than the sandbox's.
signal_others() {
    if [ $$ -eq 1 ]; then kill "-$1" -1; fi
}

if [ "$kind" = session ]; then
    ask="$folder/own/ask" told="$folder/own/told"
    mkfifo "$ask" "$told" || exit 1
    # The command reads the one and writes to the other. Of the second this shell has only the end to read from, so that it
    # hears when nobody is left to write.
    exec 5<>"$ask" 6<>"$told" 7<"$ask" 8>"$told" 9<"$told"
    exec 6<&9 9<&-
    rm -f "$ask" "$told"
    { exec 3>&-; "$@" 2>&4 4>&- 5<&7 6>&8 7<&- 8>&-; echo "ended $?" >&8; } &
    exec 7<&- 8>&-
fi

while read -r size word <&3; do
    # What goes on behind the code of a session stands still between requests.
    signal_others CONT
    head -c "$size" <&3 | tar -x -m -f - -C "${folder:-/}" --no-same-owner
    if [ "$kind" = session ]; then
        echo "$word" >&5
        # Whatever else was said there is not the answer: the code can write there, but does not know the next word.
        while read -r said status <&6; do
            if [ "$said" = "$word" ] || [ "$said" = ended ]; then break; fi
        done
        if [ -z "$said" ]; then said=ended status=137; fi
        signal_others STOP
    else
        "$@" 2>&4 3>&- 4>&-
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
