package link

const childEnv = "HAWSER_LINK_TEST_CHILD"

func runChild(string) {}
