# Run on both virtual hosts (number in $1) by a lab that shows them this
# machine's files and OUT as /out: the table of verbstest on Soft-RoCE, within
# host 1 and between both. Host 2 is the other end until host 1 is through.
# TEST_BINARY stands in /out/binary, and its arguments in /out/args.
test=$(cat /out/binary)
if [ "$1" = 2 ]; then
	IBVERBS_TEST_END=10.77.0.2:7000 "$test" &
	until [ -e /out/done ]; do sleep 1; done
	kill $!
	exit 0
fi
for try in $(seq 60); do (: >/dev/tcp/10.77.0.2/7000) 2>/dev/null && break; sleep 1; done
IBVERBS_TEST_PEER=10.77.0.2:7000 IBVERBS_TEST_LINK=eth1 "$test" $(cat /out/args)
rc=$?
touch /out/done
exit $rc
