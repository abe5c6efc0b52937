// Command kubelab is etcd and the Kubernetes control plane, and a kubelet, in one program: the
// tests' and the demo's real cluster.
//
//	kubelab etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet [FLAG]...
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubelab COMPONENT [FLAG]...")
		os.Exit(2)
	}
	os.Args = os.Args[1:] // each component reads its own flags from here
	name := os.Args[0]
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, ok := components[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "kubelab: unknown component", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
