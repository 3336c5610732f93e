#!/bin/sh
# Makes the stores of this folder anew.
set -e
J="-J-Xshare:auto -J-XX:TieredStopAtLevel=1 -storepass hunter22 -noprompt"
rm -f *.jks *.p12
keytool $J -genkeypair -alias ca -keyalg EC -dname CN=authority -ext bc:c -validity 36500 -keystore ca.p12 -storetype PKCS12
keytool $J -exportcert -alias ca -keystore ca.p12 -rfc -file ca.pem
for kind in p12:PKCS12 jks:JKS; do
  end=${kind%:*} type=${kind#*:}
  keytool $J -importcert -alias ca -file ca.pem -keystore trusted.$end -storetype $type
  for name in bookie client; do
    if [ $end = p12 ]; then
      keytool $J -genkeypair -alias $name -keyalg EC -dname CN=$name -validity 36500 -keystore $name.p12 -storetype PKCS12
      keytool $J -certreq -alias $name -keystore $name.p12 -file $name.csr
      keytool $J -gencert -alias ca -keystore ca.p12 -infile $name.csr -outfile $name.pem -rfc -validity 36500
      cat $name.pem ca.pem > chain.pem
      keytool $J -importcert -alias $name -keystore $name.p12 -file chain.pem
    else
      keytool -J-Xshare:auto -importkeystore -srckeystore $name.p12 -srcstoretype PKCS12 -srcstorepass hunter22 -noprompt \
        -destkeystore $name.jks -deststoretype JKS -deststorepass hunter22
    fi
  done
done
cp client.jks other-key.jks
keytool $J -keypasswd -alias client -keystore other-key.jks -storetype JKS -keypass hunter22 -new different
rm -f ca.p12 ca.pem chain.pem *.csr bookie.pem client.pem
openssl genpkey -algorithm SM2 -out sm2.pem
openssl req -x509 -key sm2.pem -subj /CN=other-curve -days 36500 -out sm2-certificate.pem
openssl pkcs12 -export -inkey sm2.pem -in sm2-certificate.pem -passout pass:hunter22 -out other-curve.p12
rm sm2.pem sm2-certificate.pem
