//go:build !kubernetes1.34

package contract

import "k8s.io/mount-utils"

func (*host) GetMounter(string) mount.Interface { return mount.New("") }
